//! What can be done to servers: nodes of our own as their parent, given ones on loopback by the process that they
//! report, and any server by the course's SHUTDOWN command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use violet_client::{Client, Format, Operation, RetryPolicy};

use super::cost::reported_pids;
use super::ground::Ground;
use crate::alive;
use crate::endure::bad_node::HalfStopped;
use crate::endure::nodes::Nodes;
use crate::machine::{self, ResumeWatch, Signal};

/// How long a server may take to end.
const DEATH_MAX: Duration = Duration::from_secs(5);
/// How often it is looked at.
const DEATH_LOOK: Duration = Duration::from_millis(20);
/// How long SHUTDOWN waits for an answer, which servers need not give.
const SHUTDOWN_WAIT: Duration = Duration::from_millis(300);

/// Power over some of the servers of a run.
#[derive(Debug)]
pub enum Hand<'a> {
    /// Over children.
    Own {
        /// All nodes.
        nodes: &'a mut Nodes,
    },
    /// Over processes of others.
    Given {
        /// The whole list.
        servers: Vec<SocketAddr>,
        /// The processes of those that signals are for.
        pids: BTreeMap<usize, i32>,
        /// Resumes what was stopped when this program is killed.
        watch: Option<ResumeWatch>,
    },
}

impl<'a> Hand<'a> {
    /// For these victims; `by_signal` if their processes must be known.
    ///
    /// # Errors
    /// Why they cannot be reached, and what would be right.
    pub fn over(
        ground: &'a mut Ground,
        victims: &[usize],
        format: Format,
        by_signal: bool,
    ) -> Result<Self, String> {
        let servers = match ground {
            Ground::Own(cluster) => return Ok(Self::Own { nodes: &mut cluster.nodes }),
            Ground::Given(servers) => servers.clone(),
        };
        let mut pids = BTreeMap::new();
        if by_signal {
            let theirs: Vec<SocketAddr> = victims.iter().map(|&victim| servers[victim]).collect();
            let mut client =
                Client::new(theirs.clone()).map_err(|error| error.to_string())?.with_format(format);
            let found = reported_pids(&mut client, &theirs).ok_or_else(|| {
                let names: Vec<String> = theirs.iter().map(ToString::to_string).collect();
                format!(
                    "signals need servers on loopback whose GETPID is right; {} are not all so. \
                     Use fault = \"shutdown\", or let the plan start its own nodes with --violet",
                    names.join(", ")
                )
            })?;
            let found = found.into_iter().filter_map(|pid| i32::try_from(pid).ok());
            pids = victims.iter().copied().zip(found).collect();
        }
        Ok(Self::Given { servers, pids, watch: None })
    }

    /// SIGKILL to all of these, and waits for their ends.
    ///
    /// # Errors
    /// A sentence, when one cannot be killed or goes on.
    pub fn kill(&mut self, victims: &[usize]) -> Result<(), String> {
        match self {
            Self::Own { nodes } => nodes.kill(victims),
            Self::Given { servers, pids, .. } => {
                let processes: Vec<(usize, i32)> =
                    victims.iter().map(|victim| (*victim, pids[victim])).collect();
                for &(victim, pid) in &processes {
                    machine::signal(pid, servers[victim], Signal::Kill)?;
                }
                await_all(&processes, |pid| matches!(machine::process_state(pid), None | Some('Z' | 'X')))?;
            }
        }
        Ok(())
    }

    /// The SHUTDOWN command to all of these, and waits for their ends.
    ///
    /// # Errors
    /// A sentence, when one goes on.
    pub fn shut_down(
        &mut self,
        victims: &[usize],
        servers: &[SocketAddr],
        format: Format,
    ) -> Result<(), String> {
        let theirs: Vec<SocketAddr> = victims.iter().map(|&victim| servers[victim]).collect();
        let client = Client::new(theirs.clone()).map_err(|error| error.to_string())?;
        let policy = RetryPolicy {
            waits: vec![SHUTDOWN_WAIT],
            overload_wait_max: Duration::ZERO,
            overload_rounds_max: 1,
        };
        // An answer is optional; whether they end is what counts.
        drop(client.with_format(format).with_policy(policy).ask_each(&theirs, Operation::Shutdown));
        match self {
            Self::Own { nodes } => {
                victims.iter().try_for_each(|&victim| nodes.await_end(victim, DEATH_MAX).map(drop))
            }
            Self::Given { .. } => {
                let since = Instant::now();
                loop {
                    let alive = alive::alive(&theirs, format)?;
                    let Some(place) = alive.iter().position(|&alive| alive) else { return Ok(()) };
                    if DEATH_MAX < since.elapsed() {
                        let seconds = DEATH_MAX.as_secs();
                        return Err(format!("{} lives on {seconds} s after SHUTDOWN", theirs[place]));
                    }
                }
            }
        }
    }

    /// SIGSTOP to all of these.
    ///
    /// # Errors
    /// A sentence, when one cannot be stopped.
    pub fn stop(&mut self, victims: &[usize]) -> Result<(), String> {
        match self {
            Self::Own { nodes } => nodes.stop(victims),
            Self::Given { servers, pids, watch } => {
                let numbers: Vec<i32> = victims.iter().map(|victim| pids[victim]).collect();
                *watch = Some(ResumeWatch::start(&numbers)?);
                victims
                    .iter()
                    .try_for_each(|victim| machine::signal(pids[victim], servers[*victim], Signal::Stop))
            }
        }
    }

    /// SIGCONT to all of these.
    ///
    /// # Errors
    /// A sentence, when one is gone.
    pub fn resume(&mut self, victims: &[usize]) -> Result<(), String> {
        match self {
            Self::Own { nodes } => nodes.resume(victims),
            Self::Given { servers, pids, watch } => {
                let sent = victims
                    .iter()
                    .try_for_each(|victim| machine::signal(pids[victim], servers[*victim], Signal::Continue));
                *watch = None;
                sent
            }
        }
    }

    /// Starts killed nodes again, empty.
    ///
    /// # Errors
    /// A sentence, when they are not ours.
    pub fn start_again(&mut self, victims: &[usize]) -> Result<(), String> {
        match self {
            Self::Own { nodes } => victims.iter().try_for_each(|&victim| nodes.start_again(victim)),
            Self::Given { .. } => Err("servers that were given cannot be started again from here".to_owned()),
        }
    }

    /// Lets one stand still half of the time.
    ///
    /// # Errors
    /// A sentence, when its process is not known.
    pub fn half_stop(&mut self, victim: usize) -> Result<HalfStopped, String> {
        let pid = match self {
            Self::Own { nodes } => nodes.pid(victim),
            Self::Given { pids, .. } => pids.get(&victim).and_then(|&pid| Pid::from_raw(pid)),
        };
        let pid = pid.ok_or_else(|| format!("node {victim} is not running"))?;
        HalfStopped::start(pid).map_err(|finding| format!("{finding:?}"))
    }

    /// Nodes of ours that died although nobody told them to.
    pub fn dead_by_themselves(&mut self) -> Vec<String> {
        match self {
            Self::Own { nodes } => nodes.dead_by_themselves(),
            Self::Given { .. } => Vec::new(),
        }
    }
}

fn await_all(processes: &[(usize, i32)], is_over: impl Fn(i32) -> bool) -> Result<(), String> {
    let since = Instant::now();
    while let Some((_, pid)) = processes.iter().find(|(_, pid)| !is_over(*pid)) {
        if DEATH_MAX < since.elapsed() {
            return Err(format!("process {pid} lives on {} s after SIGKILL", DEATH_MAX.as_secs()));
        }
        thread::sleep(DEATH_LOOK);
    }
    Ok(())
}
