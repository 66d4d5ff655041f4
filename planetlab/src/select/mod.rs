//! `rank` and `select`: which of the probed hosts make a cluster.
//!
//! [`candidate`] makes figures of probes, [`filter`] leaves out who cannot be chosen, [`search`] finds the best cluster of
//! the rest, [`choice`] says why. The commands read the kept probes and print; `select --write` makes an inventory of the
//! chosen hosts, with the gossip preset that fits their round trips, which is what `deploy` and `start` take.

pub mod candidate;
mod choice;
mod command;
mod filter;
mod search;

pub use command::{command, rank_command, run, run_rank};
