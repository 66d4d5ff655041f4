//! The servers under test as a stage sees them: one request at a time, and expectations about it.
//!
//! A request goes out from a fresh socket, as the graders send it, and is retried with the same bytes
//! on the course's ladder. Replies are matched by id alone, wherever they come from. What is not as
//! expected becomes a [`Finding`], which ends the stage by `?`.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use violet_client::wire::{DATAGRAM_BYTES_MAX, decode_response, encode_request};
use violet_client::{Format, Key, MessageId, Operation, Reply, Request, Status, Value};

use crate::craft;
use crate::grid::course_policy;
use crate::names::Mark;
use crate::settings::CheckArguments;
use crate::values::Random;

/// How often a request is made anew because the server says that it is overloaded.
const OVERLOAD_ROUNDS_MAX: u32 = 5;
/// How long a request without retries waits for its first reply.
const FIRST_REPLY: Duration = Duration::from_secs(2);
/// Longest pause that an overloaded server can impose.
const OVERLOAD_WAIT_MAX: Duration = Duration::from_secs(3);

/// Why a stage did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A server did what it must not.
    Fail(String),
    /// Requests timed out repeatedly, so nothing can be said.
    Undecided(String),
    /// The stage cannot or shall not be run here.
    Skip(String),
}

/// What a stage returns.
pub type StageResult = Result<(), Finding>;

/// Ends a stage as failed.
pub fn fail<T>(text: impl Into<String>) -> Result<T, Finding> {
    Err(Finding::Fail(text.into()))
}

/// One request as bytes, so that it can be sent again, damaged, or through another server.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The id that a reply must carry.
    pub id: MessageId,
    /// The command, which says how to read a raw reply.
    pub command: u32,
    /// The datagram.
    pub bytes: Vec<u8>,
    /// For messages, such as "PUT of 8 bytes".
    pub what: String,
}

/// The servers and the state of a check.
#[derive(Debug)]
pub struct Cluster {
    /// All servers of the list.
    pub servers: Vec<SocketAddr>,
    /// The protocol generation of the running stage.
    pub format: Format,
    /// Draws for the running stage.
    pub random: Random,
    /// Draws of keys, which no other run makes, whatever its seed.
    names: Random,
    /// How the check was asked for.
    pub options: CheckArguments,
    /// Remarks of the running stage that do not decide it.
    pub notes: Vec<String>,
    /// Servers that this program has killed.
    pub killed: Vec<usize>,
}

impl Cluster {
    /// All servers, none of them killed.
    pub fn new(servers: Vec<SocketAddr>, format: Format, seed: u64, options: CheckArguments) -> Self {
        Self {
            servers,
            format,
            random: Random::new(seed),
            names: Mark::fresh().random(seed),
            options,
            notes: Vec::new(),
            killed: Vec::new(),
        }
    }

    /// Remembers a remark that does not decide the stage.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The servers that this program has not killed.
    pub fn live(&self) -> Vec<usize> {
        (0..self.servers.len()).filter(|server| !self.killed.contains(server)).collect()
    }

    /// A random server among them.
    pub fn any(&mut self) -> usize {
        let live = self.live();
        live[self.random.below(live.len())]
    }

    /// A random live server other than this one; `None` if it is alone.
    pub fn any_but(&mut self, server: usize) -> Option<usize> {
        let others: Vec<usize> = self.live().into_iter().filter(|&other| other != server).collect();
        (!others.is_empty()).then(|| others[self.random.below(others.len())])
    }

    /// Whether every server is on this machine's loopback.
    pub fn is_on_loopback(&self) -> bool {
        self.servers.iter().all(|server| server.ip().is_loopback())
    }

    /// A key that no other stage uses, and no other run.
    pub fn fresh_key(&mut self) -> Key {
        Key::parse(&self.names.next().to_le_bytes()).expect("a key of eight bytes is legal")
    }

    /// What tells the keys of a set from all others, of this run and of others.
    pub fn fresh_tag(&mut self) -> u32 {
        self.names.next() as u32
    }

    /// An id that no other request uses, whatever the seed: servers remember ids from the last run.
    pub fn fresh_id(&mut self) -> MessageId {
        let mut id = [0; 16];
        let entropy = Random::fresh_seed() << 32 ^ Random::fresh_seed();
        id[..8].copy_from_slice(&entropy.to_le_bytes());
        id[8..].copy_from_slice(&self.random.next().to_le_bytes());
        // A raw datagram must not begin like a protobuf envelope. And if a server reads a damaged
        // envelope as raw, the byte at the place of the command must be a harmless one.
        id[0] |= 0x80;
        id[14] = 0x63;
        MessageId(id)
    }

    /// The operation that asks for a sign of life.
    pub fn alive_operation(&self) -> Operation<'static> {
        match self.format {
            Format::Raw => Operation::Unknown(99),
            Format::Protobuf => Operation::IsAlive,
        }
    }

    /// The status that answers it: the raw graders count "unknown command" as life.
    pub fn alive_status(&self) -> Status {
        match self.format {
            Format::Raw => Status::UnknownCommand,
            Format::Protobuf => Status::Success,
        }
    }

    /// Encodes an operation under a fresh id.
    pub fn packet(&mut self, operation: Operation<'_>) -> Packet {
        let id = self.fresh_id();
        let mut bytes = Vec::new();
        encode_request(&Request { format: self.format, id, operation }, &mut bytes);
        Packet { id, command: operation.command(), bytes, what: describe(&operation) }
    }

    /// Wraps a hand-made protobuf payload.
    pub fn crafted(&mut self, command: u32, fields: &[craft::Field<'_>], what: &str) -> Packet {
        let id = self.fresh_id();
        let bytes = craft::envelope(id, &craft::message(fields));
        Packet { id, command, bytes, what: what.to_owned() }
    }

    /// Sends a packet and its retries from this socket and returns the first reply to its id.
    pub fn deliver(&self, socket: &UdpSocket, server: usize, packet: &Packet) -> Result<Reply, Finding> {
        let address = self.servers[server];
        let waits = course_policy(self.format).waits;
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let (mut foreign, mut undecodable) = (0, 0);
        for wait in &waits {
            // What cannot be sent is lost; the retry deals with it.
            let _ = socket.send_to(&packet.bytes, address);
            let deadline = Instant::now() + *wait;
            while let Some(bytes) = receive(socket, deadline, &mut buffer) {
                match decode_response(self.format, packet.command, &buffer[..bytes]) {
                    Ok(response) if response.id == packet.id => return Ok(Reply::from(&response)),
                    Ok(_) => foreign += 1,
                    Err(_) => undecodable += 1,
                }
            }
        }
        let total: Duration = waits.iter().sum();
        let text = format!(
            "{} via {address}: no answer to {} datagrams in {:.2} s",
            packet.what,
            waits.len(),
            total.as_secs_f64()
        );
        match (foreign, undecodable) {
            (0, 0) => Err(Finding::Undecided(text)),
            (0, _) => fail(format!("{text}, but {undecodable} datagrams that are no reply of this format")),
            _ => fail(format!("{text}, but {foreign} replies with another id than the request's")),
        }
    }

    /// Asks from a fresh socket; comes back later while the server says that it is overloaded.
    pub fn ask(&mut self, server: usize, operation: Operation<'_>) -> Result<Reply, Finding> {
        let packet = self.packet(operation);
        self.ask_packet(server, packet)
    }

    /// As [`Self::ask`], for a packet.
    pub fn ask_packet(&mut self, server: usize, mut packet: Packet) -> Result<Reply, Finding> {
        let socket = self.socket()?;
        for _ in 0..OVERLOAD_ROUNDS_MAX {
            let reply = self.deliver(&socket, server, &packet)?;
            let Some(wait_ms) = reply.overload_wait_ms.filter(|_| reply.status == Status::Overload) else {
                return Ok(reply);
            };
            let wait = u64::try_from(wait_ms).unwrap_or_default();
            std::thread::sleep(Duration::from_millis(wait).min(OVERLOAD_WAIT_MAX));
            packet.id = self.fresh_id();
            craft::replace_id(self.format, packet.id, &mut packet.bytes);
        }
        fail(format!(
            "{} via {}: answered \"overloaded\" (code 3) {OVERLOAD_ROUNDS_MAX} times in a row",
            packet.what, self.servers[server]
        ))
    }

    /// Asks and insists on a status.
    pub fn expect(
        &mut self,
        server: usize,
        operation: Operation<'_>,
        status: Status,
    ) -> Result<Reply, Finding> {
        let packet = self.packet(operation);
        self.expect_packet(server, packet, status)
    }

    /// As [`Self::expect`], for a packet.
    pub fn expect_packet(&mut self, server: usize, packet: Packet, status: Status) -> Result<Reply, Finding> {
        let what = packet.what.clone();
        let reply = self.ask_packet(server, packet)?;
        self.insist(&what, server, &reply, status)?;
        Ok(reply)
    }

    /// Fails unless a reply has this status.
    pub fn insist(&self, what: &str, server: usize, reply: &Reply, status: Status) -> StageResult {
        if reply.status == status {
            return Ok(());
        }
        let code = |status: Status| format!("{} ({status})", status.code(self.format));
        fail(format!(
            "{what} via {}: expected code {}, got {}",
            self.servers[server],
            code(status),
            code(reply.status)
        ))
    }

    /// PUT that must succeed.
    pub fn put(&mut self, server: usize, key: Key, bytes: &[u8], version: i32) -> StageResult {
        self.expect(server, Operation::Put { key, value: Value { bytes, version } }, Status::Success)?;
        Ok(())
    }

    /// GET that must return exactly this.
    pub fn get(&mut self, server: usize, key: Key, bytes: &[u8], version: i32) -> StageResult {
        let reply = self.expect(server, Operation::Get { key }, Status::Success)?;
        let place = self.servers[server];
        // A reply that leaves an empty value out says the same as one that writes it.
        let got = reply.value.as_deref().unwrap_or_default();
        if got != bytes {
            return fail(format!(
                "GET via {place}: expected {}, got {}",
                show(bytes),
                show_difference(got, bytes)
            ));
        }
        if self.format == Format::Protobuf && reply.version != version {
            return fail(format!("GET via {place}: expected version {version}, got {}", reply.version));
        }
        Ok(())
    }

    /// GET that must find nothing.
    pub fn get_nothing(&mut self, server: usize, key: Key) -> StageResult {
        self.expect(server, Operation::Get { key }, Status::NoSuchKey)?;
        Ok(())
    }

    /// REMOVE that must succeed.
    pub fn remove(&mut self, server: usize, key: Key) -> StageResult {
        self.expect(server, Operation::Remove { key }, Status::Success)?;
        Ok(())
    }

    /// A sign of life.
    pub fn alive(&mut self, server: usize) -> StageResult {
        self.expect(server, self.alive_operation(), self.alive_status())?;
        Ok(())
    }

    /// A sign of life after something that must not kill: silence is a failure, not undecided.
    pub fn still_alive(&mut self, server: usize, after: &str) -> StageResult {
        match self.alive(server) {
            Err(Finding::Undecided(text)) => fail(format!("dead after {after}: {text}")),
            Err(Finding::Fail(text)) => fail(format!("after {after}: {text}")),
            other => other,
        }
    }

    /// Sends one datagram from a fresh socket and collects what comes back: waits `patience` for a first
    /// reply and `linger` more for others.
    pub fn listen(
        &self,
        server: usize,
        bytes: &[u8],
        patience: Duration,
        linger: Duration,
    ) -> Result<Vec<Vec<u8>>, Finding> {
        let socket = self.socket()?;
        let _ = socket.send_to(bytes, self.servers[server]);
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut replies = Vec::new();
        let mut deadline = Instant::now() + patience;
        while let Some(bytes) = receive(&socket, deadline, &mut buffer) {
            if replies.is_empty() {
                deadline = Instant::now() + linger;
            }
            replies.push(buffer[..bytes].to_vec());
        }
        Ok(replies)
    }

    /// Sends one packet to several servers at the same moment and returns the statuses of the replies to
    /// it: until there are as many as servers, or one at least and `patience` has passed since.
    pub fn listen_to_all(
        &self,
        socket: &UdpSocket,
        servers: &[usize],
        packet: &Packet,
        patience: Duration,
    ) -> Result<Vec<Status>, Finding> {
        for &server in servers {
            let _ = socket.send_to(&packet.bytes, self.servers[server]);
        }
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut statuses = Vec::new();
        let mut deadline = Instant::now() + FIRST_REPLY;
        while statuses.len() < servers.len() {
            let Some(bytes) = receive(socket, deadline, &mut buffer) else { break };
            let response = decode_response(self.format, packet.command, &buffer[..bytes]);
            if let Ok(response) = response
                && response.id == packet.id
            {
                statuses.push(response.status);
                deadline = Instant::now() + patience;
            }
        }
        if statuses.is_empty() {
            let seconds = FIRST_REPLY.as_secs();
            return Err(Finding::Undecided(format!("{}: no answer in {seconds} s", packet.what)));
        }
        Ok(statuses)
    }

    /// A socket on a port of its own.
    pub fn socket(&self) -> Result<UdpSocket, Finding> {
        let any = match self.servers[0] {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        UdpSocket::bind(any).map_err(|error| Finding::Undecided(format!("cannot open a socket: {error}")))
    }
}

/// The next datagram, or `None` at the deadline.
fn receive(socket: &UdpSocket, deadline: Instant, buffer: &mut [u8]) -> Option<usize> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || socket.set_read_timeout(Some(left)).is_err() {
            return None;
        }
        match socket.recv(buffer) {
            Ok(bytes) => return Some(bytes),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            // Interrupted, or news about an earlier datagram: go on until the deadline.
            Err(_) => {}
        }
    }
}

fn describe(operation: &Operation<'_>) -> String {
    match operation {
        Operation::Put { value, .. } => format!("PUT of {} bytes", value.bytes.len()),
        Operation::Get { .. } => "GET".to_owned(),
        Operation::Remove { .. } => "REMOVE".to_owned(),
        Operation::Shutdown => "SHUTDOWN".to_owned(),
        Operation::Wipeout => "WIPEOUT".to_owned(),
        Operation::IsAlive => "ISALIVE".to_owned(),
        Operation::GetPid => "GETPID".to_owned(),
        Operation::GetMembershipCount => "GETMEMBERSHIPCOUNT".to_owned(),
        Operation::GetMembershipList => "the member list (0x22)".to_owned(),
        Operation::GetStats => "the statistics (0x23)".to_owned(),
        Operation::Leave => "LEAVE (0x24)".to_owned(),
        Operation::PutWithContext { value, .. } => {
            format!("PUT of {} bytes with a context", value.bytes.len())
        }
        Operation::GetSiblings { .. } => "GET of siblings (0x26)".to_owned(),
        Operation::Locate { .. } => "where a key is (0x27)".to_owned(),
        Operation::GetPlacement { .. } => "who holds what (0x28)".to_owned(),
        Operation::Unknown(command) => format!("command {command}"),
    }
}

/// A value in a message: its length and its beginning.
pub fn show(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let dots = if 8 < bytes.len() { "…" } else { "" };
    format!("{} bytes {shown}{dots}", bytes.len())
}

fn show_difference(got: &[u8], expected: &[u8]) -> String {
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        Some(at) => format!("{}, different from byte {at} on", show(got)),
        None => show(got),
    }
}
