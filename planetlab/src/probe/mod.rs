//! `probe` and `probe-agent`: what the hosts and the ways between them are like.
//!
//! `violet-testbed probe-agent` runs on every host at once: it reads an [`record::AgentPlan`] as JSON, measures
//! ([`agent`]) and prints a [`record::AgentReport`]. `violet-testbed probe` starts the agents over ssh, joins the reports
//! ([`mesh`]), keeps them with a time stamp ([`store`]) and prints what it saw ([`table`]).

pub mod agent;
pub mod agent_command;
mod clocks;
pub mod command;
pub mod facts;
pub mod mesh;
mod packet;
pub mod record;
#[cfg(test)]
pub mod samples;
pub mod store;
pub mod table;
mod tally;
