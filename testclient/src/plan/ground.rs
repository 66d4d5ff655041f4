//! The servers of a run: given ones, or nodes that the run starts on loopback and ends with itself.
//!
//! Given servers can be anybody's. Which of them answer is looked at before each step, so that a wrong line of a list or
//! a server that has died is named at once, and the rest goes on with the others.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use violet_client::{Format, Status};

use super::interrupt::Stop;
use crate::batch;
use crate::endure::health::Doctor;
use crate::endure::nodes::{Nodes, Recipe};
use crate::load::{Ask, Call};

/// How long nodes may take to find each other.
const START_MAX: Duration = Duration::from_secs(30);
/// How often they are looked at meanwhile.
const START_LOOK: Duration = Duration::from_millis(500);
/// How long a sign of life may take, try by try.
const LIFE_WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(500), Duration::from_millis(1_000)];

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

/// How long one that was silent before is waited for: it may have come back.
const AGAIN_WAITS: [Duration; 1] = [Duration::from_millis(250)];

/// As [`alive`], when it is known which were alive before.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn still_alive(servers: &[SocketAddr], before: &[bool], format: Format) -> Result<Vec<bool>, String> {
    let mut now = vec![false; servers.len()];
    for (was_alive, waits) in [(true, LIFE_WAITS.as_slice()), (false, AGAIN_WAITS.as_slice())] {
        let places: Vec<usize> = (0..servers.len()).filter(|&place| before[place] == was_alive).collect();
        let chosen: Vec<SocketAddr> = places.iter().map(|&place| servers[place]).collect();
        if !chosen.is_empty() {
            let found = alive_within(&chosen, format, waits)?;
            places.into_iter().zip(found).for_each(|(place, alive)| now[place] = alive);
        }
    }
    Ok(now)
}

/// For each server whether it gives a sign of life in this format.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn alive(servers: &[SocketAddr], format: Format) -> Result<Vec<bool>, String> {
    alive_within(servers, format, &LIFE_WAITS)
}

fn alive_within(servers: &[SocketAddr], format: Format, waits: &[Duration]) -> Result<Vec<bool>, String> {
    let mut alive = vec![false; servers.len()];
    let mut queue = 0..servers.len();
    let next = |_: &mut Vec<u8>| Some(Call { server: queue.next()?, ask: Ask::IsAlive });
    let on_end = |call: &Call, end: crate::load::End<'_>| {
        // The raw generation answers "unknown command" to the probe; an overloaded server lives as well.
        let is_sign = |status| matches!(status, Status::Success | Status::UnknownCommand | Status::Overload);
        alive[call.server] = end.status().is_some_and(is_sign);
    };
    batch::run(servers, format, waits, servers.len().max(1), next, on_end)?;
    Ok(alive)
}

/// What is wrong with a list whose servers do not all answer: one line that names them, and what to look at.
pub fn silence_text(servers: &[SocketAddr], alive: &[bool], format: Format) -> Option<String> {
    let silent: Vec<String> = servers
        .iter()
        .zip(alive)
        .filter(|(_, alive)| !**alive)
        .map(|(server, _)| server.to_string())
        .collect();
    if silent.is_empty() {
        return None;
    }
    let shown = silent[..silent.len().min(8)].join(", ");
    let more = silent.len().saturating_sub(8);
    let more = if 0 < more { format!(" and {more} more") } else { String::new() };
    let of = match silent.len() == servers.len() {
        true if servers.len() == 1 => "the only server does not answer".to_owned(),
        true => format!("none of the {} servers answers", servers.len()),
        false => format!("{} of {} servers do not answer", silent.len(), servers.len()),
    };
    Some(format!("{of} in the {format:?} format: {shown}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_servers_are_named() {
        let servers: Vec<SocketAddr> =
            (1..4).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect();
        assert_eq!(silence_text(&servers, &[true; 3], Format::Raw), None);
        assert_eq!(
            silence_text(&servers, &[true, false, true], Format::Protobuf).unwrap(),
            "1 of 3 servers do not answer in the Protobuf format: 127.0.0.1:2"
        );
        let none = silence_text(&servers, &[false; 3], Format::Raw).unwrap();
        assert!(none.starts_with("none of the 3 servers answers in the Raw format: 127.0.0.1:1, "), "{none}");
    }
}
