//! Violet: a key-value cluster that speaks UDP. The way through the files is in `ARCHITECTURE.md`.

pub mod config;
pub mod control;
pub mod metrics;
pub mod node;
pub mod outbox;
pub mod time;
