//! The course protocol on the wire, and a client for it.

pub mod wire;

pub use wire::{Format, Key, MessageId, Operation, Request, Response, Status, Value};
