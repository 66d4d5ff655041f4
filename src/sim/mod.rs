//! The simulator: many nodes and clients in one thread, in virtual time, from one seed.
//!
//! It drives the same core as the server, over a network and machines that fail as the dice say
//! (FoundationDB, TigerBeetle). [`world`] is the event loop, [`network`] and [`host`] are what can go
//! wrong, [`client`] asks, [`history`] and [`checker`] judge, [`swarm`] runs many seeds. Scripts under
//! `scenarios/` play single cases. See "How it is tested" in ARCHITECTURE.md.
//!
//! Deliberately not here: threads inside a plane (each datagram is handled as one step), disks.

pub mod checker;
pub mod client;
pub mod dice;
pub mod faults;
pub mod history;
pub mod host;
pub mod linear;
pub mod network;
pub mod report;
pub mod script;
pub mod swarm;
pub mod trace;
pub mod world;

/// Bugs that can be planted in test builds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bugs {
    /// Repeats are executed again.
    pub no_dedup: bool,
    /// The first miss is the answer.
    pub first_miss_wins: bool,
    /// The client is told before the replicas have it.
    pub early_ack: bool,
    /// A replica keeps what comes last, not what is newest.
    pub old_version_wins: bool,
    /// A replica forgets a removal together with the value.
    pub lost_tombstone: bool,
}

#[cfg(test)]
mod tests;
