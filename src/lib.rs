//! Violet: a key-value cluster that speaks UDP. The way through the files is in `ARCHITECTURE.md`.

pub mod metrics;
pub mod outbox;
pub mod time;
