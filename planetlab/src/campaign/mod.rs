//! `run`, `schedule` and `fetch`: plans of the test client, run on hosts against the nodes of the inventory.
//!
//! A run is started on its hosts so that it outlives the connection ([`on_host`]), waited for, and brought home under its
//! name ([`record`]). `schedule` does that at given hours of each site's own day ([`timetable`]); `fetch` brings home what a
//! broken connection left behind.

mod command;
mod fetch;
mod on_host;
pub mod record;
mod schedule;
mod timetable;
pub mod zone;

pub use command::{command, run};
pub use fetch::{command as fetch_command, run as run_fetch};
pub use schedule::{command as schedule_command, run as run_schedule};
