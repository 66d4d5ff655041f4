//! A server that does what a test tells it: the test's script runs in a thread of its own and receives
//! and sends datagrams by hand. Nothing here sleeps; a script that waits for a datagram that never
//! comes ends the test after a while.

use std::net::{SocketAddr, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use violet_client::wire::{
    self, Accept, DATAGRAM_BYTES_MAX, Format, MessageId, Operation, Request, Response, Status, Value,
};

/// Much longer than any test takes, and shorter than anybody's patience.
const SCRIPT_WAIT_MAX: Duration = Duration::from_secs(30);

/// A socket that a script uses.
pub struct Server {
    socket: UdpSocket,
}

/// A running script.
pub struct Script {
    thread: JoinHandle<()>,
}

impl Script {
    /// Starts a script.
    pub fn play(script: impl FnOnce() + Send + 'static) -> Self {
        Self { thread: thread::spawn(script) }
    }

    /// Waits for its end; fails if it failed.
    pub fn end(self) {
        self.thread.join().expect("the script found what it expected");
    }
}

/// A request as it came.
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Where it came from.
    pub from: SocketAddr,
}

impl Server {
    /// Opens a socket on a free port.
    pub fn open() -> Self {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        socket.set_read_timeout(Some(SCRIPT_WAIT_MAX)).unwrap();
        Self { socket }
    }

    /// Where to reach it.
    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Waits for a datagram.
    pub fn receive(&self) -> Received {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let (length, from) = self.socket.recv_from(&mut buffer).expect("a request comes");
        buffer.truncate(length);
        Received { bytes: buffer, from }
    }

    /// Sends bytes to whoever asked.
    pub fn send(&self, request: &Received, bytes: &[u8]) {
        self.socket.send_to(bytes, request.from).unwrap();
    }

    /// Answers with a status and nothing else.
    pub fn answer(&self, request: &Received, status: Status) {
        self.send(request, &request.reply(|response| response.status = status));
    }

    /// Answers a GET.
    pub fn answer_value(&self, request: &Received, bytes: &'static [u8], version: i32) {
        self.send(request, &request.reply(|response| response.value = Some(Value { bytes, version })));
    }
}

impl Received {
    /// What it means.
    pub fn decoded(&self) -> Request<'_> {
        wire::decode_request(&self.bytes, Accept::Auto).expect("clients send requests")
    }

    /// Its id.
    pub fn id(&self) -> MessageId {
        self.decoded().id
    }

    /// What it asks for.
    pub fn operation(&self) -> Operation<'_> {
        self.decoded().operation
    }

    /// Its layout.
    pub fn format(&self) -> Format {
        self.decoded().format
    }

    /// A success with these changes, as bytes.
    pub fn reply(&self, change: impl FnOnce(&mut Response<'static>)) -> Vec<u8> {
        let mut response = Response::of_status(self.id(), Status::Success);
        change(&mut response);
        let mut bytes = Vec::new();
        wire::encode_response(self.format(), &response, &mut bytes);
        bytes
    }
}
