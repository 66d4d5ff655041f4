//! What only Violet answers, as methods of the blocking [`Client`]: concurrent values with causal contexts,
//! and the planned leave of a node.
//!
//! A PUT of the course protocol replaces whatever is there. [`Client::put_with_context`] replaces only what
//! its caller has seen: values that others stored meanwhile stay beside the new one, as siblings, until
//! somebody reads them all ([`Client::get_siblings`]) and writes again with the context that came along.
//!
//! Deliberately not here: merging siblings into one value; only their owner knows how.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::blocking::{Client, Error, Stored, parse_key, succeed};
use crate::exchange::{Reply, RetryPolicy};
use crate::wire::siblings::{PUT_WITH_CONTEXT_BYTES_MAX, put_with_context_bytes};
use crate::wire::{Context, Operation, Siblings, Status, Value};

/// How often a node that leaves is asked whether it is still there.
const PROBE_PAUSE: Duration = Duration::from_millis(500);
/// How long a node is asked in vain before it counts as gone: one probe of three attempts.
const PROBE_WAITS: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];

/// The concurrent values of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiblingValues {
    /// The values.
    pub values: Vec<Stored>,
    /// What to hand to [`Client::put_with_context`] with the value that replaces all of these.
    pub context: Vec<u8>,
}

impl Client {
    /// Stores a value that replaces what `context` has seen and nothing else; an empty context has seen
    /// nothing. The context comes from [`Self::get_siblings`], or from an earlier call of this. Returns the
    /// context to replace this value with. The raw format cannot carry a version.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn put_with_context(
        &mut self,
        key: &[u8],
        value: &[u8],
        version: i32,
        context: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let key = parse_key(key)?;
        let context = Context::parse(context).map_err(|_| Error::ContextLength(context.len()))?;
        let bytes = put_with_context_bytes(&context, value);
        if PUT_WITH_CONTEXT_BYTES_MAX < bytes {
            return Err(Error::ValueWithContextLength(bytes));
        }
        let value = Value { bytes: value, version };
        let (server, reply) = self.ask_any(Operation::PutWithContext { key, context, value })?;
        Ok(sibling_values(server, &reply)?.context)
    }

    /// All concurrent values of a key with their context, `None` when there is none.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn get_siblings(&mut self, key: &[u8]) -> Result<Option<SiblingValues>, Error> {
        let (server, reply) = self.ask_any(Operation::GetSiblings { key: parse_key(key)? })?;
        if reply.status == Status::NoSuchKey {
            return Ok(None);
        }
        sibling_values(server, &reply).map(Some)
    }

    /// Tells a server to hand its data to the others and then leave. It goes on answering meanwhile; see
    /// [`Self::wait_until_gone`].
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn leave(&mut self, server: SocketAddr) -> Result<(), Error> {
        succeed(server, &self.ask(server, Operation::Leave)?)
    }

    /// Waits until a server answers no more, at most about this long, and says whether that is so. Each
    /// time that it still answers, `on_answer` gets the time since the start.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be asked, which says nothing about it.
    pub fn wait_until_gone(
        &mut self,
        server: SocketAddr,
        limit: Duration,
        mut on_answer: impl FnMut(Duration),
    ) -> Result<bool, Error> {
        let policy = RetryPolicy {
            waits: PROBE_WAITS.to_vec(),
            overload_rounds_max: 0,
            ..RetryPolicy::once(Duration::ZERO)
        };
        let started = Instant::now();
        loop {
            match self.ask_patiently(server, Operation::IsAlive, &policy) {
                Err(Error::TimedOut { .. }) => return Ok(true),
                Err(error @ Error::Io { .. }) => return Err(error),
                // Any answer is a sign of life.
                _ => {}
            }
            let waited = started.elapsed();
            on_answer(waited);
            if limit <= waited {
                return Ok(false);
            }
            thread::sleep(PROBE_PAUSE.min(limit - waited));
        }
    }
}

fn sibling_values(server: SocketAddr, reply: &Reply) -> Result<SiblingValues, Error> {
    succeed(server, reply)?;
    let field = reply.value.as_deref().unwrap_or_default();
    let siblings = Siblings::decode(field).map_err(|_| Error::Incomplete(server))?;
    let stored = |value: &Value<'_>| Stored { bytes: value.bytes.to_vec(), version: value.version };
    Ok(SiblingValues {
        values: siblings.values.iter().map(stored).collect(),
        context: siblings.context.as_bytes().to_vec(),
    })
}
