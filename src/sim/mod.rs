//! The simulator: many nodes and clients in one thread, in virtual time, from one seed.
//!
//! It drives the same core as the server, over a network and machines that fail as the dice say
//! (FoundationDB, TigerBeetle). [`world`] is the event loop, [`network`] and [`host`] are what can go
//! wrong, [`client`] asks, [`history`] and [`checker`] judge, [`swarm`] is one seed from beginning to end,
//! [`many`] runs many of them side by side, [`played`] plays scenario files of the testbed. Scripts under
//! `scenarios/` play single cases.
//!
//! Deliberately not here: threads inside a plane (each datagram is handled as one step), disks.

pub mod census;
pub mod checker;
pub mod client;
pub mod command;
pub mod faults;
pub mod history;
pub mod host;
pub mod linear;
pub mod many;
pub mod message_count;
pub mod network;
pub mod played;
pub mod report;
pub mod retell;
pub mod script;
pub mod size;
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
    /// "No such key" is told to who removes what is being removed, before the replicas know of that.
    pub absence_is_not_awaited: bool,
    /// A replica keeps what comes last, not what is newest.
    pub old_version_wins: bool,
    /// Digests leave removals out, so that owners do not find out that one of them missed one.
    pub unseen_tombstones: bool,
    /// Of two hints for one key the older one stays.
    pub hint_keeps_older: bool,
    /// The hint of a write that was taken back is delivered all the same.
    pub hint_survives_undo: bool,
    /// Former owners are not written to while their successors are being filled.
    pub no_dual_write: bool,
    /// What a node holds and does not own goes at once.
    pub strays_go_unasked: bool,
    /// The writer of versions is the same at every start, and the clock starts over.
    pub reused_writer: bool,
    /// Who was cut off from other holders does not ask them before it executes what may be a repeat.
    pub no_recall_after_a_split: bool,
    /// Any number of operations may wait for one member.
    pub no_bound_per_peer: bool,
    /// A client is told of a write although a late holder may answer reads from before it.
    pub late_holders_do_not_count: bool,
    /// Late reads go to a second replica whatever that costs.
    pub hedges_without_budget: bool,
    /// Front ends hear that their reads were answered only if something else is said to them.
    pub answers_wait_for_a_ride: bool,
    /// Time-outs are the same for members that are far away.
    pub round_trips_do_not_count: bool,
    /// Replicas are placed as if there were no sites.
    pub sites_are_ignored: bool,
    /// A node that is cut off from most others does not notice it.
    pub cut_offs_are_not_noticed: bool,
    /// Marks of removals go by their age alone.
    pub tombstones_without_agreement: bool,
}

#[cfg(test)]
mod bad_node_tests;
#[cfg(test)]
mod siblings_tests;
#[cfg(test)]
mod tests;
