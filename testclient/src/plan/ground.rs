//! The servers of a run: given ones, or nodes that the run starts on loopback and ends with itself.
//!
//! Given servers can be anybody's. Which of them answer is looked at before each step, so that a wrong line of a list or
//! a server that has died is named at once, and the rest goes on with the others.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use violet_client::Format;

use crate::endure::health::Doctor;
use crate::endure::nodes::{Nodes, Recipe};
use crate::interrupt::Stop;

/// How long nodes may take to find each other.
const START_MAX: Duration = Duration::from_secs(30);
/// How often they are looked at meanwhile.
const START_LOOK: Duration = Duration::from_millis(500);

/// How nodes are started.
#[derive(Clone, Debug)]
pub struct Home {
    /// The violet binary, as a whole path.
    pub violet: PathBuf,
    /// Where lists and logs go.
    pub directory: PathBuf,
    /// UDP port of the first node; the others follow.
    pub port: u16,
    /// Settings of every node, NAME=VALUE.
    pub settings: Vec<String>,
}

/// Nodes that this process has started. They end when this is dropped.
#[derive(Debug)]
pub struct OwnCluster {
    /// The processes.
    pub nodes: Nodes,
    /// Where they listen.
    pub servers: Vec<SocketAddr>,
}

impl OwnCluster {
    /// Starts so many nodes and waits until each counts all.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(home: &Home, count: usize, stop: &Stop) -> Result<Self, String> {
        let port = |index: usize| {
            u16::try_from(usize::from(home.port) + index)
                .map_err(|_| format!("--port {}: there is no room for {count} ports above it", home.port))
        };
        let address = |index| Ok::<_, String>(SocketAddr::from((Ipv4Addr::LOCALHOST, port(index)?)));
        let servers = (0..count).map(address).collect::<Result<Vec<_>, _>>()?;
        let recipe = Recipe {
            program: home.violet.clone(),
            directory: home.directory.clone(),
            settings: home.settings.clone(),
        };
        let nodes = Nodes::new(recipe, &servers)?;
        nodes.check_ports().map_err(|error| format!("{error}; --port names other ports"))?;
        let mut cluster = Self { nodes, servers };
        let everyone: Vec<usize> = (0..count).collect();
        for &node in &everyone {
            cluster.nodes.start(node, &everyone)?;
        }
        let mut doctor = Doctor::new(&cluster.servers, Format::Protobuf)?;
        let since = Instant::now();
        while let Err(why) = doctor.await_counts(&cluster.servers, START_LOOK) {
            if let Some(dead) = cluster.nodes.dead_by_themselves().first() {
                return Err(format!("no cluster: {dead}"));
            }
            if stop.is_set() {
                return Err("interrupted while nodes were starting".to_owned());
            }
            if START_MAX < since.elapsed() {
                return Err(format!("no cluster: {why}"));
            }
        }
        Ok(cluster)
    }

    /// The processes of all nodes that run.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |node| self.nodes.pid(node).map(Pid::as_raw_nonzero);
        self.nodes
            .running()
            .into_iter()
            .filter_map(pid)
            .filter_map(|pid| u32::try_from(pid.get()).ok())
            .collect()
    }
}

/// The servers of a run.
#[derive(Debug)]
pub enum Ground {
    /// Named on the command line.
    Given(Vec<SocketAddr>),
    /// Started here.
    Own(OwnCluster),
}

impl Ground {
    /// All of them, whether they live or not.
    pub fn servers(&self) -> &[SocketAddr] {
        match self {
            Self::Given(servers) => servers,
            Self::Own(cluster) => &cluster.servers,
        }
    }

    /// Their processes, if they are our own.
    pub fn own_pids(&self) -> Option<Vec<u32>> {
        match self {
            Self::Given(_) => None,
            Self::Own(cluster) => Some(cluster.pids()),
        }
    }
}
