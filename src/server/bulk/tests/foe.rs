//! The other end of a connection, by hand: says what a test wants, right or wrong.

use super::{Host, KEY, PATIENCE};
use crate::ids::MemberId;
use crate::peer::bulk::{BulkKey, Conversation, Heard, Hello};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// One end.
pub(super) struct Foe {
    stream: TcpStream,
    pub(super) talk: Conversation,
    /// Everything that it has sent.
    pub(super) sent: Vec<u8>,
}

impl Foe {
    /// Connects as a member of this name, and says nothing yet.
    pub(super) fn connect(to: &Host, name: MemberId) -> Self {
        let hello = Hello { sender: name, receiver: to.me, generation: 1, nonce: [9; 16] };
        let stream = TcpStream::connect(to.address).expect("it listens");
        Self::new(stream, Conversation::ask(BulkKey::new(&KEY), hello))
    }

    /// Connects as a member and is proven as such.
    pub(super) fn proven(to: &Host, name: MemberId) -> Self {
        let mut foe = Self::connect(to, name);
        foe.prove();
        foe
    }

    /// Waits for someone to connect.
    pub(super) fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().expect("someone connects");
        let me = MemberId::of(listener.local_addr().expect("bound"));
        Self::new(stream, Conversation::answer(BulkKey::new(&KEY), me, 1, [8; 16]))
    }

    /// Waits for someone to connect, and for its first request.
    pub(super) fn accept_request(listener: &TcpListener) -> Self {
        let mut foe = Self::accept(listener);
        assert_eq!(foe.hear(), Some(Heard::Hello));
        foe.greet();
        assert_eq!(foe.hear(), Some(Heard::Proof));
        assert_eq!(foe.hear(), Some(Heard::Frame));
        foe
    }

    fn new(stream: TcpStream, talk: Conversation) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, talk, sent: Vec::new() }
    }

    /// Sends these bytes; returns whether the other side still takes any.
    pub(super) fn send(&mut self, bytes: &[u8]) -> bool {
        self.sent.extend_from_slice(bytes);
        self.stream.write_all(bytes).is_ok()
    }

    pub(super) fn hello(&mut self) {
        let hello = self.talk.hello();
        self.send(&hello);
        assert_eq!(self.hear(), Some(Heard::Hello));
    }

    pub(super) fn greet(&mut self) {
        let mut bytes = Vec::new();
        self.talk.greet(&mut bytes);
        self.send(&bytes);
    }

    pub(super) fn prove(&mut self) {
        self.hello();
        self.greet();
    }

    /// A frame as it should be.
    pub(super) fn frame(&mut self, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.talk.seal(body, &mut bytes).expect("short enough");
        bytes
    }

    pub(super) fn say(&mut self, body: &[u8]) {
        let bytes = self.frame(body);
        self.send(&bytes);
    }

    /// Asks, and waits for the response or the end.
    pub(super) fn exchange(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        self.say(request);
        (self.hear()? == Heard::Frame).then(|| self.talk.take_frame())
    }

    /// The next thing that the other side says, as a whole; `None` when it hangs up instead, or what
    /// it says is not for this end.
    pub(super) fn hear(&mut self) -> Option<Heard> {
        let mut buffer = [0; 65_536];
        loop {
            let wanted = self.talk.wanted().min(buffer.len());
            let bytes = self.read(&mut buffer[..wanted]);
            if bytes == 0 {
                return None;
            }
            match self.talk.feed(&buffer[..bytes]).ok()? {
                Heard::Part => {}
                heard => return Some(heard),
            }
        }
    }

    /// Waits for the other side to hang up; returns how many bytes it had still to say.
    pub(super) fn await_end(&mut self) -> usize {
        let mut buffer = [0; 65_536];
        let mut total = 0;
        loop {
            match self.read(&mut buffer) {
                0 => return total,
                bytes => total += bytes,
            }
        }
    }

    /// Says no more, but still listens.
    pub(super) fn fall_silent(&self) {
        // Fails when the other side has hung up.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Zero bytes mean the end, however it came.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        match self.stream.read(buffer) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("waited in vain for the other side")
            }
            Err(_) => 0,
        }
    }
}
