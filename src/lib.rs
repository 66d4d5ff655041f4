//! Violet: a key-value cluster that speaks UDP. The way through the files is in `ARCHITECTURE.md`.

pub mod admin;
pub mod cluster;
pub mod config;
pub mod control;
pub mod coordinator;
pub mod ids;
pub mod local_cluster;
pub mod metrics;
pub mod node;
pub mod outbox;
pub mod peer;
pub mod replica;
pub mod server;
pub mod sim;
pub mod storage;
pub mod time;
