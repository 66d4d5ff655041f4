//! What a probe asks for and what it brings back: the plan that an agent reads, the report that it prints, and the
//! file that keeps the reports of all hosts of one probe.
//!
//! Everything is by the host's name in the file, by its index in the plan between agents. A host that could not be
//! asked is in the file too, with the reason, so that later choices can hold it against the host. Times are seconds or
//! milliseconds, as the name says; chances and shares are 0 to 1.
//!
//! Deliberately not here: measuring and judging.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Of the layout of a probe's file; a reader refuses others.
pub const LAYOUT: u32 = 1;

/// What one agent is to do; JSON on its input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentPlan {
    /// Drawn for each probe. Packets with another number are not answered, so an agent is no reflector.
    pub run: u64,
    /// Its own index in the mesh.
    pub me: u16,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Seconds to wait for others that start later.
    pub gather_seconds: f64,
    /// Seconds in which it measures.
    pub seconds: f64,
    /// Small packets a second to each of the others.
    pub small_per_second: f64,
    /// Large ones.
    pub large_per_second: f64,
    /// The others.
    pub peers: Vec<Peer>,
}

/// Another agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its index in the mesh.
    pub index: u16,
    /// Where it listens.
    pub address: SocketAddr,
}

/// What one agent saw; JSON on its output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// Of the machine.
    pub facts: Facts,
    /// Receive buffer that the kernel granted, in bytes.
    pub receive_buffer_bytes: usize,
    /// Why packets could not leave, with the number of times, if any could not.
    pub send_errors: BTreeMap<String, u64>,
    /// To and from each of the others.
    pub links: Vec<Link>,
}

/// The machine as an agent finds it. What cannot be found out is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Processors that the agent may use.
    pub cores: usize,
    /// One-minute load average.
    pub load: Option<f64>,
    /// Memory that can be had without swapping, in bytes.
    pub memory_free_bytes: Option<u64>,
    /// All memory.
    pub memory_bytes: Option<u64>,
    /// Free for this user on the disk of the working directory.
    pub disk_free_bytes: Option<u64>,
    /// Kernel's name and version.
    pub kernel: String,
    /// Largest receive buffer that a program may ask for, in bytes (`net.core.rmem_max`).
    pub rmem_max_bytes: Option<u64>,
}

/// One agent's account of its packets to one other, and of the other's packets to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Index of the other.
    pub peer: u16,
    /// Whether anything of it came here: the way from it to here is open.
    pub is_heard: bool,
    /// An address it was seen to send from, if that is not the one in the plan (address translation).
    pub seen_as: Option<SocketAddr>,
    /// 64-byte packets.
    pub small: Exchange,
    /// 10,000-byte packets, which are seven fragments at an MTU of 1,500.
    pub large: Exchange,
    /// The other's clock minus this one's, in milliseconds, from the exchange with the shortest round trip.
    pub clock_ahead_ms: Option<f64>,
}

/// Packets of one size between two agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Sent to the other.
    pub sent: u64,
    /// Of those, answered.
    pub answered: u64,
    /// Answers beyond the first to one packet.
    pub duplicates: u64,
    /// The other's own packets that came here; its account says how many it sent.
    pub received: u64,
    /// Round trips, if any was answered.
    pub round_trip: Option<RoundTrip>,
}

/// Round trips in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// Shortest.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95 of 100.
    pub p95_ms: f64,
    /// Longest.
    pub max_ms: f64,
    /// Mean difference between one round trip and the next.
    pub jitter_ms: f64,
}

/// A whole probe as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// [`LAYOUT`].
    pub layout: u32,
    /// Start, in seconds from 1970.
    pub started_unix_seconds: u64,
    /// Seconds in which each pair was measured.
    pub seconds: f64,
    /// All hosts that were asked, in the order of indices.
    pub hosts: Vec<Host>,
}

/// One host of a probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name in the inventory.
    pub name: String,
    /// Where it stands; hosts of one site fail together.
    pub site: String,
    /// Part of the world.
    pub region: String,
    /// Where its agent listened.
    pub address: Option<SocketAddr>,
    /// Why there is no report, if there is none: a sentence.
    pub failure: Option<String>,
    /// What its agent saw.
    pub report: Option<AgentReport>,
    /// Its clock minus the median clock of all, in milliseconds.
    pub clock_ahead_ms: Option<f64>,
    /// How far that may be off.
    pub clock_error_ms: Option<f64>,
}

impl Probe {
    /// The account of the host at index `from` about its packets to `to`.
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        let report = self.hosts.get(from)?.report.as_ref()?;
        report.links.iter().find(|link| usize::from(link.peer) == to)
    }

    /// Whether packets get from one host to the other. Only a host that reported can tell what it heard.
    pub fn is_open(&self, from: usize, to: usize) -> bool {
        self.link(to, from).is_some_and(|link| link.is_heard)
    }

    /// Round trips of small packets as either end saw them: the worse account.
    pub fn round_trip(&self, one: usize, other: usize) -> Option<RoundTrip> {
        let there = self.link(one, other).and_then(|link| link.small.round_trip);
        let back = self.link(other, one).and_then(|link| link.small.round_trip);
        match (there, back) {
            (Some(there), Some(back)) if there.p95_ms < back.p95_ms => Some(back),
            (there, back) => there.or(back),
        }
    }

    /// Share of round trips that failed in either direction: small packets, large ones. The worse account of the two.
    pub fn loss(&self, one: usize, other: usize) -> Option<(f64, f64)> {
        let accounts = [self.link(one, other), self.link(other, one)];
        let worst = |of: fn(&Link) -> &Exchange| {
            let shares = accounts.iter().flatten().filter_map(|link| of(link).loss());
            shares.reduce(f64::max)
        };
        Some((worst(|link| &link.small)?, worst(|link| &link.large)?))
    }

    /// Share of packets lost on the way from one host to the other, by both accounts: small packets, large ones.
    pub fn loss_one_way(&self, from: usize, to: usize) -> Option<(f64, f64)> {
        let sent = self.link(from, to)?;
        let heard = self.link(to, from)?;
        let share =
            |sent: u64, received: u64| (0 < sent).then(|| 1.0 - received.min(sent) as f64 / sent as f64);
        Some((share(sent.small.sent, heard.small.received)?, share(sent.large.sent, heard.large.received)?))
    }
}

impl Exchange {
    /// Share of round trips that failed; nothing if none was tried.
    pub fn loss(&self) -> Option<f64> {
        (0 < self.sent).then(|| 1.0 - self.answered.min(self.sent) as f64 / self.sent as f64)
    }
}
