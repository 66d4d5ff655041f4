//! A client that blocks: it sends requests to servers of a list and returns typed results.
//!
//! Operations on keys go to a new random server each time; the retries of one operation go to the same
//! server. Replies are matched by message id alone, on sockets that are not connected, because any
//! member of the cluster may answer. Questions about servers name theirs, and [`Client::ask_each`] asks
//! many at once.
//!
//! **At most once.** All datagrams of an operation carry one id, so a server that keeps its replies
//! executes the operation once, however often it is sent. When no reply comes, the operation is tried
//! once more through another server, *with the same id and the same bytes*: in Violet that is safe,
//! because the record of an execution lives with the owner of the key and not with the server asked. On
//! servers that keep their records to themselves a REMOVE may then report "no such key" for what its
//! first execution removed, and a PUT may overwrite a later one; see [`Client::without_second_server`].
//! A time-out says nothing about whether the operation was executed, and an overloaded server that asks
//! to come back later gets a new id, as the protocol wants it.
//!
//! Deliberately not here: caching, pipelining, threads. A `Client` is cheap; use one per thread.

mod calls;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::exchange::{Reply, RetryPolicy, scramble};
use crate::ids::{MessageIds, random_number};
use crate::wire::siblings::{CONTEXT_BYTES_MAX, PUT_WITH_CONTEXT_BYTES_MAX};
use crate::wire::{DATAGRAM_BYTES_MAX, Format, Key, MessageId, Operation, Status, Value};
use crate::zero_hop::ZeroHop;
use calls::{Call, Sockets};

/// Room for everything in a request but its value.
const REQUEST_OVERHEAD_BYTES_MAX: usize = 128;
/// The longest value that fits a datagram. Servers store less, and say so; this much can be asked.
pub const SENDABLE_VALUE_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - REQUEST_OVERHEAD_BYTES_MAX;

/// Why an operation has no result.
#[derive(Debug)]
pub enum Error {
    /// The client was given no servers.
    NoServers,
    /// The key has no bytes or more than 32.
    KeyLength(usize),
    /// The value does not fit a datagram.
    ValueLength(usize),
    /// The context is longer than any server gives out.
    ContextLength(usize),
    /// The value, its context and two bytes for the context's length are too long together.
    ValueWithContextLength(usize),
    /// No reply to any attempt. The operation may have been executed.
    TimedOut {
        /// The last server asked.
        server: SocketAddr,
        /// How many datagrams it was sent.
        attempts: u32,
    },
    /// The server was overloaded each time, or told us to give up.
    Overloaded(SocketAddr),
    /// The server answered with an error.
    Refused {
        /// The server asked.
        server: SocketAddr,
        /// Its answer.
        status: Status,
    },
    /// The server reported success but left out what was asked for.
    Incomplete(SocketAddr),
    /// The request could not be sent, or nothing could be received.
    Io {
        /// The server meant.
        server: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServers => f.write_str("the server list is empty"),
            Self::KeyLength(bytes) => write!(f, "the key has {bytes} bytes; 1 to 32 are allowed"),
            Self::ValueLength(bytes) => {
                write!(f, "the value has {bytes} bytes; at most {SENDABLE_VALUE_BYTES_MAX} fit a datagram")
            }
            Self::ContextLength(bytes) => {
                write!(f, "the context has {bytes} bytes; at most {CONTEXT_BYTES_MAX} are allowed")
            }
            Self::ValueWithContextLength(bytes) => {
                let max = PUT_WITH_CONTEXT_BYTES_MAX;
                write!(f, "the value and its context take {bytes} bytes; at most {max} are allowed")
            }
            Self::TimedOut { server, attempts: 1 } => write!(f, "no reply from {server}"),
            Self::TimedOut { server, attempts } => {
                write!(f, "no reply from {server} after {attempts} attempts")
            }
            Self::Overloaded(server) => write!(f, "{server} is overloaded"),
            Self::Refused { server, status } => write!(f, "{server} answered: {status}"),
            Self::Incomplete(server) => write!(f, "{server} left out what was asked for"),
            Self::Io { server, source } => write!(f, "cannot ask {server}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::NoServers
            | Self::KeyLength(_)
            | Self::ValueLength(_)
            | Self::ContextLength(_)
            | Self::ValueWithContextLength(_)
            | Self::TimedOut { .. }
            | Self::Overloaded(_)
            | Self::Refused { .. }
            | Self::Incomplete(_) => None,
        }
    }
}

/// A value that a GET found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The version stored with them; 0 in the raw generations.
    pub version: i32,
}

/// A blocking client of a cluster.
#[derive(Debug)]
pub struct Client {
    servers: Vec<SocketAddr>,
    format: Format,
    policy: RetryPolicy,
    tries_second_server: bool,
    ids: MessageIds,
    random: u64,
    sockets: Sockets,
    /// Who holds which key, for a client that wants to know.
    pub(crate) zero_hop: Option<ZeroHop>,
}

/// What came of asking several servers, one after the other.
#[derive(Debug)]
pub(crate) struct Told {
    /// The servers that were asked, in this order.
    pub(crate) asked: Vec<SocketAddr>,
    /// Where the reply came from.
    pub(crate) answered_by: Option<SocketAddr>,
    /// The id that was asked with last: overload may have changed it on the way.
    pub(crate) id: MessageId,
    /// The reply.
    pub(crate) result: Result<Reply, Error>,
}

impl Client {
    /// A client of these servers that speaks protobuf, retries as the clients of 2019 do, and asks a
    /// second server when the first does not reply.
    ///
    /// # Errors
    /// [`Error::NoServers`] when the list is empty.
    pub fn new(servers: Vec<SocketAddr>) -> Result<Self, Error> {
        if servers.is_empty() {
            return Err(Error::NoServers);
        }
        Ok(Self {
            servers,
            format: Format::Protobuf,
            policy: RetryPolicy::default(),
            tries_second_server: true,
            ids: MessageIds::new(),
            random: random_number(),
            sockets: Sockets::new(),
            zero_hop: None,
        })
    }

    /// Speaks this format instead.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Retries by this policy instead.
    #[must_use]
    pub fn with_policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Gives up when the server asked does not reply.
    #[must_use]
    pub fn without_second_server(mut self) -> Self {
        self.tries_second_server = false;
        self
    }

    /// The servers, as given.
    #[must_use]
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// Stores a value and its version (which the raw format cannot carry) under a key.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn put(&mut self, key: &[u8], value: &[u8], version: i32) -> Result<(), Error> {
        if SENDABLE_VALUE_BYTES_MAX < value.len() {
            return Err(Error::ValueLength(value.len()));
        }
        let value = Value { bytes: value, version };
        let (server, reply) = self.ask_any(Operation::Put { key: parse_key(key)?, value })?;
        succeed(server, &reply)
    }

    /// Fetches the value of a key, `None` when there is none.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Stored>, Error> {
        let (server, reply) = self.ask_any(Operation::Get { key: parse_key(key)? })?;
        if reply.status == Status::NoSuchKey {
            return Ok(None);
        }
        succeed(server, &reply)?;
        // Some servers leave an empty value out.
        Ok(Some(Stored { bytes: reply.value.unwrap_or_default(), version: reply.version }))
    }

    /// Removes a key and says whether it was there.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        let (server, reply) = self.ask_any(Operation::Remove { key: parse_key(key)? })?;
        if reply.status == Status::NoSuchKey {
            return Ok(false);
        }
        succeed(server, &reply)?;
        Ok(true)
    }

    /// Whether a server answers at all, be it with an error: servers of 2015 and 2016 do not know the
    /// command, and answering so shows that they live.
    ///
    /// # Errors
    /// Any of [`Error`] but [`Error::Refused`] and [`Error::Incomplete`].
    pub fn alive(&mut self, server: SocketAddr) -> Result<(), Error> {
        self.ask(server, Operation::IsAlive).map(|_| ())
    }

    /// The process id of a server.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn pid(&mut self, server: SocketAddr) -> Result<i32, Error> {
        let reply = self.ask_well(server, Operation::GetPid)?;
        reply.pid.ok_or(Error::Incomplete(server))
    }

    /// How many members a server takes for alive, itself included.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn membership_count(&mut self, server: SocketAddr) -> Result<i32, Error> {
        let reply = self.ask_well(server, Operation::GetMembershipCount)?;
        reply.membership_count.ok_or(Error::Incomplete(server))
    }

    /// The members as a server sees them, one `address state` a line. Only Violet answers this.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn membership_list(&mut self, server: SocketAddr) -> Result<String, Error> {
        let reply = self.ask_well(server, Operation::GetMembershipList)?;
        reply.text().ok_or(Error::Incomplete(server))
    }

    /// The counters of a server as JSON text. Only Violet answers this.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn stats(&mut self, server: SocketAddr) -> Result<String, Error> {
        let reply = self.ask_well(server, Operation::GetStats)?;
        reply.text().ok_or(Error::Incomplete(server))
    }

    /// Makes a server forget all that it holds. It takes all servers to empty a cluster.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn wipeout(&mut self, server: SocketAddr) -> Result<(), Error> {
        self.ask_well(server, Operation::Wipeout).map(|_| ())
    }

    /// Makes a server crash at once. Not every server replies before it does.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn shutdown(&mut self, server: SocketAddr) -> Result<(), Error> {
        self.ask_well(server, Operation::Shutdown).map(|_| ())
    }

    /// Asks a random server of the list, and on a failure to get through one other; for a key, with
    /// [`Self::with_zero_hop`], the members that hold it. Returns the reply, whatever its status, and the server that
    /// was asked.
    ///
    /// # Errors
    /// Any of [`Error`] but [`Error::Refused`] and [`Error::Incomplete`].
    pub fn ask_any(&mut self, operation: Operation<'_>) -> Result<(SocketAddr, Reply), Error> {
        if self.zero_hop.is_some()
            && let Some(key) = operation.key()
        {
            return self.ask_holders(operation, key);
        }
        let (first, second) = self.two_servers();
        let mut call = self.call(first, operation);
        self.sockets.run(std::slice::from_mut(&mut call));
        // Overload may have changed the id on the way, so it is the last one that goes on.
        let id = call.exchange.id();
        match (call.into_result(), second) {
            (Err(Error::TimedOut { .. } | Error::Io { .. }), Some(second)) => {
                let mut call = Call::new(vec![second], self.format, id, operation, &self.policy);
                self.sockets.run(std::slice::from_mut(&mut call));
                Ok((second, call.into_result()?))
            }
            (result, _) => Ok((first, result?)),
        }
    }

    /// Asks one server and returns its reply, whatever its status.
    ///
    /// # Errors
    /// Any of [`Error`] but [`Error::Refused`] and [`Error::Incomplete`].
    pub fn ask(&mut self, server: SocketAddr, operation: Operation<'_>) -> Result<Reply, Error> {
        let mut call = self.call(server, operation);
        self.sockets.run(std::slice::from_mut(&mut call));
        call.into_result()
    }

    /// As [`Self::ask`], with another patience than the client's.
    pub(crate) fn ask_patiently(
        &mut self,
        server: SocketAddr,
        operation: Operation<'_>,
        policy: &RetryPolicy,
    ) -> Result<Reply, Error> {
        let mut call = Call::new(vec![server], self.format, self.ids.draw(), operation, policy);
        self.sockets.run(std::slice::from_mut(&mut call));
        call.into_result()
    }

    /// Asks servers, each attempt the next of them, all with the same datagram. Those of another address family than
    /// the first are left out.
    ///
    /// # Panics
    /// Without a server.
    pub(crate) fn ask_in_turn(
        &mut self,
        mut servers: Vec<SocketAddr>,
        id: MessageId,
        operation: Operation<'_>,
    ) -> Told {
        let is_ipv4 = servers.first().expect("somebody to ask").is_ipv4();
        servers.retain(|server| server.is_ipv4() == is_ipv4);
        let mut call = Call::new(servers, self.format, id, operation, &self.policy);
        self.sockets.run(std::slice::from_mut(&mut call));
        let asked = call.servers.iter().copied().cycle().take(call.sent).collect();
        let (answered_by, id) = (call.answered_by, call.exchange.id());
        Told { asked, answered_by, id, result: call.into_result() }
    }

    /// An id that nobody has asked with.
    pub(crate) fn draw_id(&mut self) -> MessageId {
        self.ids.draw()
    }

    /// Time since this client was made.
    pub(crate) fn now(&self) -> Duration {
        self.sockets.started.elapsed()
    }

    /// The format that it speaks.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Whether somebody else is asked when nobody answers.
    pub(crate) fn tries_second_server(&self) -> bool {
        self.tries_second_server
    }

    /// Asks many servers at the same time. The results are in the order of the servers.
    pub fn ask_each(
        &mut self,
        servers: &[SocketAddr],
        operation: Operation<'_>,
    ) -> Vec<Result<Reply, Error>> {
        let mut calls: Vec<Call> = servers.iter().map(|&server| self.call(server, operation)).collect();
        self.sockets.run(&mut calls);
        calls.into_iter().map(Call::into_result).collect()
    }

    fn ask_well(&mut self, server: SocketAddr, operation: Operation<'_>) -> Result<Reply, Error> {
        let reply = self.ask(server, operation)?;
        succeed(server, &reply)?;
        Ok(reply)
    }

    fn call(&mut self, server: SocketAddr, operation: Operation<'_>) -> Call {
        Call::new(vec![server], self.format, self.ids.draw(), operation, &self.policy)
    }

    /// A random server of the list.
    pub fn random_server(&mut self) -> SocketAddr {
        let place = self.random_below(self.servers.len());
        self.servers[place]
    }

    /// A random server, and another one in case that it does not reply.
    pub(crate) fn two_servers(&mut self) -> (SocketAddr, Option<SocketAddr>) {
        let first = self.random_server();
        if !self.tries_second_server {
            return (first, None);
        }
        let others: Vec<SocketAddr> =
            self.servers.iter().copied().filter(|&server| server != first).collect();
        match others.len() {
            0 => (first, None),
            count => (first, Some(others[self.random_below(count)])),
        }
    }

    pub(crate) fn random_below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(1);
        (scramble(self.random) % bound as u64) as usize
    }
}

pub(crate) fn parse_key(key: &[u8]) -> Result<Key, Error> {
    Key::parse(key).map_err(|_| Error::KeyLength(key.len()))
}

pub(crate) fn succeed(server: SocketAddr, reply: &Reply) -> Result<(), Error> {
    match reply.status {
        Status::Success => Ok(()),
        status => Err(Error::Refused { server, status }),
    }
}
