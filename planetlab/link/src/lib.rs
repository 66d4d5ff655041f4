//! What becomes of a packet between two places: a wide-area network as a pure library.
//!
//! A packet goes in with the time and its two ends, and out come the moments at which it arrives, or the
//! cause of its loss ([`Network::send`]). Every directed pair of ends is a link with [`Settings`] and random
//! numbers of its own, which follow from the seed and the ends alone: a new node changes nothing between the
//! old ones. [`Control`] is the language in which links are changed while a run goes on, [`Scenario`] the file that
//! holds a whole run, [`presets`] are networks to start from; [`sites`] has the measured round-trip times.
//!
//! The simulator, the emulator and the loopback proxy drive this same code, each with a clock of its own.
//! Deliberately not here: clocks, sockets, threads, and what is inside a packet.

pub mod control;
pub mod dice;
mod link;
pub mod network;
pub mod presets;
pub mod roster;
mod rules;
pub mod scenario;
pub mod settings;
pub mod sites;
mod units;

pub use control::Control;
pub use dice::Dice;
pub use network::{Cause, Counts, Delivery, Network, Outcome, Parcel};
pub use roster::{Endpoint, Ends, Roster};
pub use scenario::{Scenario, Timeline};
pub use settings::{Change, Jitter, Loss, Settings};
