//! Load from several machines at once: agents that wait for orders over TCP, and the crew that gives them.
//!
//! An agent makes load wherever it is told to, so it is a weapon in wrong hands. It listens on loopback unless told
//! otherwise, and elsewhere only with a token, which whoever gives orders must know. It serves one run at a time,
//! and stops as soon as the connection that ordered the load is gone. Nothing is encrypted: the token keeps
//! strangers out, not somebody who reads the wire. Across networks that are not yours, use a tunnel (`ssh -L`).
//!
//! Both sides greet each other with the version of this protocol ([`message`]), the crew measures how far each clock is
//! from its own ([`clock`]), tells all agents to begin at the same moment, each in its own time, and adds up what
//! they return ([`merge`]). An agent that is lost is named, the others go on, and the result is not whole.

mod agent;
mod clock;
mod crew;
mod merge;
mod message;
mod share;
mod single;

pub use agent::{AgentArguments, read_token, run};
pub use crew::Crew;
