//! The emulated world: `emulate` makes one and runs a command in it, `control` changes it while it runs, `clean` removes
//! what a killed one left, and `accuracy` measures how well it does what it was told.
//!
//! A world is a network namespace with a TUN device for each node and one for the client, and one router thread that
//! carries every packet between them as the link model says (`violet-link`). It is real IP: fragments, TCP and ssh go the
//! same way. Nothing leaves the machine. Delay is made in user space, because the kernels this runs on need not have netem.

mod account;
pub mod accuracy;
pub mod clean;
mod control;
pub mod control_command;
mod link;
mod made;
mod packet;
mod pcap;
mod router;
mod running;
mod session;
mod system;
#[cfg(test)]
mod tests;
mod world;

pub use account::Account;
pub use link::Links;
pub use router::{TICK, processor_time};
pub use running::{LinkArguments, command, run};
pub use session::DESCRIPTION;

/// Answers the lines of a control socket by a function, for others who drive the link model.
pub fn answer_controls(
    path: &std::path::Path,
    doer: impl Fn(&str) -> Result<serde_json::Value, String> + Send + Sync + 'static,
) -> std::io::Result<()> {
    control::listen(path, std::sync::Arc::new(doer))
}
