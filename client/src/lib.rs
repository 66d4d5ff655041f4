//! The course protocol on the wire, and a client for it.
//!
//! Three layers, each usable without the one above: [`wire`] reads and writes datagrams, [`exchange`]
//! is one request with its retries as a state machine, [`blocking`] is a client over sockets, with what
//! only Violet answers in [`extensions`] and [`zero_hop`]. The command line is the binary of this package.
//!
//! ```no_run
//! use violet_client::{Client, servers};
//!
//! let servers = servers::load("127.0.0.1:4001,127.0.0.1:4002")?;
//! let mut client = Client::new(servers.iter().map(|server| server.address).collect())?;
//! client.put(b"colour", b"violet", 1)?;
//! let found = client.get(b"colour")?.expect("it was just stored");
//! assert_eq!(found.bytes, b"violet");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod blocking;
pub mod exchange;
pub mod extensions;
pub mod ids;
pub mod placement;
pub mod servers;
pub mod wire;
pub mod zero_hop;

pub use blocking::{Client, Error, Stored};
pub use exchange::{Exchange, Outcome, Reply, RetryPolicy, Step, Verdict};
pub use extensions::SiblingValues;
pub use ids::MessageIds;
pub use placement::Placement;
pub use servers::{Server, ServersError};
pub use wire::{Context, Format, Key, MessageId, Operation, Request, Response, Siblings, Status, Value};
pub use zero_hop::ZeroHop;
