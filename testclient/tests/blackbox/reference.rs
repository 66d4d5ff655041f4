//! A reference cluster for tests: a few threads with a socket each and one store between them, so that
//! it is trivially consistent; and a list of defects that can be planted in it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use violet_client::wire::protobuf::{Envelope, checksum};
use violet_client::wire::{Accept, DATAGRAM_BYTES_MAX, Rejected, decode_request, encode_response};
use violet_client::{Format, Key, MessageId, Operation, Request, Response, Status, Value};

/// How late replies are of a cluster that delays them.
pub const DELAY: Duration = Duration::from_millis(50);
/// The same of one that stalls, when it does not.
const DELAY_BETWEEN_STALLS: Duration = Duration::from_millis(5);
/// From the beginning of one stall to that of the next.
const STALL_PERIOD: Duration = Duration::from_secs(10);
/// How long each lasts.
const STALL: Duration = Duration::from_secs(1);

/// What is wrong with the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Nothing.
    None,
    /// Every fifth GET has one byte changed.
    WrongValue,
    /// Every fifth GET finds nothing.
    MissesKeys,
    /// GET returns a version that is one too high.
    WrongVersion,
    /// A PUT with a smaller version than the stored one is ignored.
    HighestVersionWins,
    /// Each repeated datagram is executed again.
    NoReplyCache,
    /// The reply cache looks at the id alone.
    CacheById,
    /// The reply cache includes the client's port.
    CacheByPort,
    /// Each node has its own reply cache.
    CachePerNode,
    /// The reply cache holds 64 replies.
    CacheSmall,
    /// WIPEOUT is executed again when it is repeated.
    WipeoutNotCached,
    /// Every fifth reply that is not remembered carries the id of the request before.
    IdsMixedUp,
    /// A tenth of the datagrams is lost.
    LosesDatagrams,
    /// A zero error code is left out, as proto3 libraries do.
    OmitsZeroCode,
    /// Each reply is sent twice.
    RepliesTwice,
    /// Every fifth PUT is answered with "overloaded".
    AnswersOverload,
    /// Damaged envelopes are answered.
    IgnoresChecksum,
    /// Values longer than the limit are stored.
    NoValueLimit,
    /// A long datagram kills the node.
    DiesOfGarbage,
    /// One node has a store of its own, so it does not see the others' writes.
    SplitBrain,
    /// When full, an overwrite is refused and the old value stays readable.
    RefusesOverwrite,
    /// The member count is one too high.
    WrongCount,
    /// Wiped keys come back when they are read for the second time.
    Resurrects,
    /// REMOVE is acknowledged and does nothing.
    KeepsRemoved,
    /// Every fifth GET returns the value before the last.
    StaleValue,
    /// Every fifth reply comes from an address that nobody asked.
    RepliesFromElsewhere,
    /// Replies leave [`DELAY`] after their request came.
    Delays,
    /// For the first of every ten seconds nothing is done; otherwise replies leave 5 ms after their request came.
    Stalls,
    /// One request is done in a millisecond.
    IsSlow,
}

#[derive(Clone)]
struct Stored {
    bytes: Vec<u8>,
    version: i32,
    before: Option<Box<Stored>>,
}

#[derive(Default)]
struct Store {
    values: HashMap<Key, Stored>,
    value_bytes: usize,
    wiped: HashMap<Key, Stored>,
    read_since_wiped: HashSet<Key>,
    replies: HashMap<u64, Vec<u8>>,
}

/// A running cluster; its threads end when it is dropped.
pub struct Reference {
    pub servers: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

struct Shared {
    defect: Defect,
    space_bytes: usize,
    stores: [Mutex<Store>; 2],
    live: Mutex<HashSet<usize>>,
    ended: Mutex<bool>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Reference {
    pub fn start(nodes: usize, defect: Defect) -> Self {
        Self::with_space(nodes, defect, usize::MAX)
    }

    /// A cluster that holds at most this many bytes of values.
    pub fn with_space(nodes: usize, defect: Defect, space_bytes: usize) -> Self {
        let shared = Arc::new(Shared {
            defect,
            space_bytes,
            stores: Default::default(),
            live: Mutex::new((0..nodes).collect()),
            ended: Mutex::new(false),
        });
        let servers = (0..nodes)
            .map(|index| {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                let address = socket.local_addr().unwrap();
                let node = Node {
                    index,
                    elsewhere: UdpSocket::bind("127.0.0.1:0").unwrap(),
                    courier: start_courier(&socket),
                    socket,
                    shared: Arc::clone(&shared),
                    started: Instant::now(),
                    received: 0,
                    id_before: None,
                };
                thread::spawn(move || node.run());
                address
            })
            .collect();
        Self { servers, shared }
    }

    /// The server list as `--servers` takes it.
    pub fn list(&self) -> String {
        self.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        *locked(&self.shared.ended) = true;
        let waker = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Wakes the threads, so that they see the end. A node that is gone cannot be woken.
        self.servers.iter().for_each(|server| drop(waker.send_to(&[], server)));
    }
}

/// A reply, to whom, and when it leaves.
type Parcel = (Instant, Vec<u8>, SocketAddr);

/// A thread that sends replies at their times, in order; it ends with its sender.
fn start_courier(socket: &UdpSocket) -> Sender<Parcel> {
    let (sender, parcels): (_, Receiver<Parcel>) = mpsc::channel();
    let socket = socket.try_clone().unwrap();
    thread::spawn(move || {
        for (at, reply, client) in parcels {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            drop(socket.send_to(&reply, client));
        }
    });
    sender
}

struct Node {
    index: usize,
    socket: UdpSocket,
    elsewhere: UdpSocket,
    courier: Sender<Parcel>,
    started: Instant,
    shared: Arc<Shared>,
    received: u64,
    id_before: Option<MessageId>,
}

impl Node {
    fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            let Ok((bytes, client)) = self.socket.recv_from(&mut buffer) else { continue };
            if *locked(&self.shared.ended) || (self.is(Defect::DiesOfGarbage) && 60_000 < bytes) {
                return;
            }
            self.received += 1;
            self.hesitate();
            if self.is(Defect::LosesDatagrams) && self.received.is_multiple_of(10) {
                continue;
            }
            let datagram = &mut buffer[..bytes];
            if self.is(Defect::IgnoresChecksum) {
                mend_checksum(datagram);
            }
            let Some(reply) = self.answer(datagram, client) else { continue };
            self.send(reply, client);
            if decode_request(datagram, Accept::Auto)
                .is_ok_and(|request| request.operation == Operation::Shutdown)
            {
                locked(&self.shared.live).remove(&self.index);
                return;
            }
        }
    }

    fn send(&self, reply: Vec<u8>, client: SocketAddr) {
        match self.shared.defect {
            Defect::Delays => drop(self.courier.send((Instant::now() + DELAY, reply, client))),
            Defect::Stalls => {
                drop(self.courier.send((Instant::now() + DELAY_BETWEEN_STALLS, reply, client)));
            }
            Defect::RepliesFromElsewhere if self.fifth() => drop(self.elsewhere.send_to(&reply, client)),
            Defect::RepliesTwice => (0..2).for_each(|_| drop(self.socket.send_to(&reply, client))),
            _ => drop(self.socket.send_to(&reply, client)),
        }
    }

    /// Waits as the defect has it before a request is looked at.
    fn hesitate(&self) {
        let in_period =
            Duration::from_nanos((self.started.elapsed().as_nanos() % STALL_PERIOD.as_nanos()) as u64);
        match self.shared.defect {
            Defect::Stalls => thread::sleep(STALL.saturating_sub(in_period)),
            Defect::IsSlow => thread::sleep(Duration::from_millis(1)),
            _ => {}
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.shared.defect == defect
    }

    fn fifth(&self) -> bool {
        self.received.is_multiple_of(5)
    }

    fn answer(&mut self, datagram: &[u8], client: SocketAddr) -> Option<Vec<u8>> {
        let request = match decode_request(datagram, Accept::Auto) {
            Ok(request) => request,
            Err(Rejected::Answer { format, status: Status::InvalidValue, id })
                if self.is(Defect::NoValueLimit) =>
            {
                return Some(self.encode(format, &Response::of_status(id, Status::Success)));
            }
            Err(Rejected::Answer { format, id, status }) => {
                return Some(self.encode(format, &Response::of_status(id, status)));
            }
            Err(Rejected::Drop(_)) => return None,
        };
        let shared = Arc::clone(&self.shared);
        let other_store = self.is(Defect::SplitBrain) && self.index == 1;
        let mut store = locked(&shared.stores[usize::from(other_store)]);
        let cache_key = self.cache_key(&request, datagram, client);
        if let Some(reply) = cache_key.and_then(|key| store.replies.get(&key)) {
            return Some(reply.clone());
        }
        let reply = self.execute(&request, &mut store);
        if let Some(key) = cache_key {
            if self.is(Defect::CacheSmall) && 64 <= store.replies.len() {
                store.replies.clear();
            }
            store.replies.insert(key, reply.clone());
        }
        Some(reply)
    }

    /// Under which key the reply is remembered; `None` for what is executed each time.
    fn cache_key(&self, request: &Request<'_>, datagram: &[u8], client: SocketAddr) -> Option<u64> {
        let remembered = match request.operation {
            Operation::Put { .. } | Operation::Remove { .. } => !self.is(Defect::NoReplyCache),
            Operation::Wipeout => !self.is(Defect::NoReplyCache) && !self.is(Defect::WipeoutNotCached),
            _ => false,
        };
        let mut hasher = DefaultHasher::new();
        request.id.hash(&mut hasher);
        if !self.is(Defect::CacheById) {
            datagram.hash(&mut hasher);
        }
        if self.is(Defect::CacheByPort) {
            client.port().hash(&mut hasher);
        }
        if self.is(Defect::CachePerNode) {
            self.index.hash(&mut hasher);
        }
        remembered.then(|| hasher.finish())
    }

    fn execute(&mut self, request: &Request<'_>, store: &mut Store) -> Vec<u8> {
        let mut response = Response::of_status(request.id, Status::Success);
        let mut bytes;
        match request.operation {
            Operation::Put { .. } if self.is(Defect::AnswersOverload) && self.fifth() => {
                response.status = Status::Overload;
                response.overload_wait_ms = (request.format == Format::Protobuf).then_some(1);
            }
            Operation::Put { key, value } => response.status = self.put(store, key, value),
            Operation::Get { key } => match self.get(store, &key) {
                Some(stored) => {
                    bytes = stored.bytes.clone();
                    if self.is(Defect::WrongValue) && self.fifth() {
                        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                    }
                    let version = stored.version + i32::from(self.is(Defect::WrongVersion));
                    response.value = Some(Value { bytes: &bytes, version });
                }
                None => response.status = Status::NoSuchKey,
            },
            Operation::Remove { .. } if self.is(Defect::KeepsRemoved) => {}
            Operation::Remove { key } => match store.values.remove(&key) {
                Some(stored) => store.value_bytes -= stored.bytes.len(),
                None => response.status = Status::NoSuchKey,
            },
            Operation::Wipeout => {
                let wiped = std::mem::take(&mut store.values);
                store.wiped.extend(wiped);
                store.value_bytes = 0;
            }
            Operation::Shutdown | Operation::IsAlive => {}
            Operation::GetPid => response.pid = Some(thread_id()),
            Operation::GetMembershipCount => {
                let count = locked(&self.shared.live).len() as i32;
                response.membership_count = Some(count + i32::from(self.is(Defect::WrongCount)));
            }
            Operation::GetMembershipList
            | Operation::GetStats
            | Operation::Leave
            | Operation::PutWithContext { .. }
            | Operation::GetSiblings { .. }
            | Operation::Locate { .. }
            | Operation::GetPlacement { .. }
            | Operation::Unknown(_) => {
                response.status = Status::UnknownCommand;
            }
        }
        let id = self.id_before.replace(request.id);
        // Not where the reply is remembered: the retry shall be answered rightly, to keep the test short.
        let remembered = matches!(
            request.operation,
            Operation::Put { .. } | Operation::Remove { .. } | Operation::Wipeout
        );
        if self.is(Defect::IdsMixedUp) && self.fifth() && !remembered {
            response.id = id.unwrap_or(request.id);
        }
        self.encode(request.format, &response)
    }

    fn put(&self, store: &mut Store, key: Key, value: Value<'_>) -> Status {
        let old = store.values.get(&key);
        if self.is(Defect::HighestVersionWins) && old.is_some_and(|old| value.version < old.version) {
            return Status::Success;
        }
        let old_bytes = old.map_or(0, |old| old.bytes.len());
        let full = self.shared.space_bytes < store.value_bytes - old_bytes + value.bytes.len();
        let refuse_overwrite = self.is(Defect::RefusesOverwrite)
            && self.shared.space_bytes < store.value_bytes + value.bytes.len();
        if full || refuse_overwrite {
            return Status::OutOfSpace;
        }
        store.value_bytes = store.value_bytes - old_bytes + value.bytes.len();
        // Versions before the last one are only kept to be given out wrongly.
        let before = store.values.remove(&key).map(|old| Box::new(Stored { before: None, ..old }));
        let before = before.filter(|_| self.is(Defect::StaleValue));
        store.values.insert(key, Stored { bytes: value.bytes.to_vec(), version: value.version, before });
        Status::Success
    }

    fn get<'a>(&self, store: &'a mut Store, key: &Key) -> Option<&'a Stored> {
        if self.is(Defect::MissesKeys) && self.fifth() {
            return None;
        }
        let returns = self.is(Defect::Resurrects) && !store.values.contains_key(key);
        if returns
            && !store.read_since_wiped.insert(*key)
            && let Some(stored) = store.wiped.remove(key)
        {
            store.value_bytes += stored.bytes.len();
            store.values.insert(*key, stored);
        }
        let stored = store.values.get(key);
        let before = stored.and_then(|stored| stored.before.as_deref());
        if self.is(Defect::StaleValue) && self.fifth() { before.or(stored) } else { stored }
    }

    fn encode(&self, format: Format, response: &Response<'_>) -> Vec<u8> {
        let mut reply = Vec::new();
        encode_response(format, response, &mut reply);
        if self.is(Defect::OmitsZeroCode) && format == Format::Protobuf && response.status == Status::Success
        {
            let envelope = Envelope::parse(&reply).unwrap();
            assert_eq!(envelope.payload[..2], [8, 0], "the error code comes first");
            reply = as_proto3_would(envelope.id, &envelope.payload[2..]);
        }
        reply
    }
}

/// An envelope in which an empty payload is left out too.
fn as_proto3_would(id: MessageId, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x0a, 16];
    out.extend_from_slice(&id.0);
    if !payload.is_empty() {
        out.push(0x12);
        let mut length = payload.len();
        while 0x80 <= length {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(payload);
    }
    out.push(0x19);
    out.extend_from_slice(&checksum(&id.0, payload).to_le_bytes());
    out
}

fn mend_checksum(datagram: &mut [u8]) {
    let Some(envelope) = Envelope::parse(datagram) else { return };
    let sum = checksum(&envelope.id.0, envelope.payload).to_le_bytes();
    let end = datagram.len();
    datagram[end - 8..].copy_from_slice(&sum);
}

/// Each node is a thread, and Linux shows threads below /proc like processes: so each has a number of
/// its own that exists.
fn thread_id() -> i32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}
