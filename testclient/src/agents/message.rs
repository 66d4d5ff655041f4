//! What agents and crews say to each other: JSON, each message behind its length in four bytes, the largest first.

use std::io::{self, ErrorKind, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::load::Glimpse;
use crate::plan::{CheckOrder, Checked, Order};
use crate::result::{Machine, Phase};

/// Of the messages. Both sides must speak the same.
pub const PROTOCOL: u32 = 2;
/// Longest message in bytes; a phase of a day with a hundred servers is a hundredth of it.
const MESSAGE_BYTES_MAX: u32 = 256 << 20;

/// From the crew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum ToAgent {
    /// The first message.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Of the program.
        version: String,
        /// What the agent's token file holds, if it has one.
        token: Option<String>,
    },
    /// What time is it?
    Clock,
    /// Make this phase, from this moment of the agent's own clock on, in nanoseconds from 1970.
    Run {
        /// The phase.
        order: Box<Order>,
        /// When.
        at_unix_nanos: u64,
    },
    /// Run these stages of `check`.
    Check {
        /// Which, and against whom.
        order: Box<CheckOrder>,
    },
    /// How has your machine been since the greeting?
    Machine,
    /// The servers were emptied.
    Forget,
    /// End the phase early.
    Stop,
}

/// From an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum FromAgent {
    /// The answer to a right greeting.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Of the program.
        version: String,
        /// Where it runs.
        machine: Machine,
    },
    /// The answer to a wrong one.
    Refused {
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The answer to [`ToAgent::Clock`], in nanoseconds from 1970.
    Clock {
        /// Now.
        unix_nanos: u64,
    },
    /// How a phase goes.
    Glimpse {
        /// Its state.
        glimpse: Glimpse,
    },
    /// The phase is over.
    Done {
        /// What was seen.
        phase: Box<Phase>,
        /// What was wrong with answers, one sentence each.
        faults: Vec<String>,
        /// What a reader should notice, one sentence each.
        remarks: Vec<String>,
    },
    /// How stages of `check` go.
    Stage {
        /// What there is to say.
        checked: Checked,
    },
    /// The stages are over.
    StagesDone {
        /// Why they were not run to the end, if so.
        why: Option<String>,
    },
    /// The answer to [`ToAgent::Machine`].
    Machine {
        /// Its one-minute load average now.
        load_average: Option<f64>,
        /// Share of processor time that the hypervisor gave to others since the greeting.
        steal_share: Option<f64>,
    },
    /// The phase could not be made.
    Failed {
        /// Why.
        why: String,
    },
}

/// Sends a message.
///
/// # Errors
/// The connection's.
pub fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).ok().filter(|&length| length <= MESSAGE_BYTES_MAX);
    let length =
        length.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message that is too long"))?;
    // In one piece: two small writes would wait for each other's acknowledgement.
    let framed = [length.to_be_bytes().as_slice(), &bytes].concat();
    stream.write_all(&framed)?;
    stream.flush()
}

/// Receives a message.
///
/// # Errors
/// The connection's, its end included; and what is no message.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    receive_up_to(stream, MESSAGE_BYTES_MAX)
}

/// As [`receive`], for a stranger, who must not make us take much memory.
///
/// # Errors
/// As [`receive`].
pub fn receive_up_to<T: DeserializeOwned>(stream: &mut impl Read, bytes_max: u32) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if bytes_max < length {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    // Grows with what arrives, so a length alone takes no memory.
    let mut bytes = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_long_or_cut_ones_are_refused() {
        let mut wire = Vec::new();
        let hello = ToAgent::Hello { protocol: 1, version: "0".to_owned(), token: Some("t".to_owned()) };
        send(&mut wire, &hello).unwrap();
        send(&mut wire, &ToAgent::Stop).unwrap();
        let mut reader = wire.as_slice();
        assert_eq!(receive::<ToAgent>(&mut reader).unwrap(), hello);
        assert_eq!(receive::<ToAgent>(&mut reader).unwrap(), ToAgent::Stop);
        assert_eq!(receive::<ToAgent>(&mut reader).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(
            receive::<ToAgent>(&mut &wire[..wire.len() / 4]).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
        assert!(receive_up_to::<ToAgent>(&mut wire.as_slice(), 5).unwrap_err().to_string().contains("bytes"));
        let no_json = [0, 0, 0, 2, b'h', b'i'];
        assert_eq!(receive::<ToAgent>(&mut no_json.as_slice()).unwrap_err().kind(), ErrorKind::InvalidData);
        let mut other = Vec::new();
        send(&mut other, &"fetch").unwrap();
        assert!(receive::<ToAgent>(&mut other.as_slice()).unwrap_err().to_string().contains("fetch"));
    }
}
