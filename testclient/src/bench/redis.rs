//! The part of Redis's protocol that is measured, and a pipelining load over TCP for it.
//!
//! Replies come in the order of the requests, so each connection keeps a queue of what it asked. The window
//! of requests under way is split over the connections, as it is over sockets in the other loads, and
//! whatever there is to send leaves in one write. Deliberately not here: open loads, and any command but
//! GET and SET.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::codec::Kind;
use super::contents::Contents;
use super::generator::PATIENCE;
use super::load::{Mix, Stream, Tally};
use crate::values::Random;

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// Longest sleep while nothing comes.
const SLEEP: Duration = Duration::from_millis(5);

/// One reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+text`.
    Simple(&'a [u8]),
    /// `-text`.
    Error(&'a [u8]),
    /// `$length` and the bytes; none for `$-1`.
    Bulk(Option<&'a [u8]>),
}

/// Bytes that are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads one reply from the start of `bytes`, and says how long it is; `None` while it is not all there.
///
/// # Errors
/// [`Malformed`], when more bytes would not help.
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Malformed> {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\r') else { return Ok(None) };
    let (&kind, line) = bytes[..end].split_first().ok_or(Malformed)?;
    let body_at = end + 2;
    match kind {
        _ if bytes.len() < body_at => Ok(None),
        b'+' => Ok(Some((Reply::Simple(line), body_at))),
        b'-' => Ok(Some((Reply::Error(line), body_at))),
        b'$' if line == b"-1" => Ok(Some((Reply::Bulk(None), body_at))),
        b'$' => {
            let length: usize =
                std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Malformed)?;
            let all = body_at.checked_add(length).and_then(|end| end.checked_add(2)).ok_or(Malformed)?;
            Ok((all <= bytes.len()).then(|| (Reply::Bulk(Some(&bytes[body_at..][..length])), all)))
        }
        _ => Err(Malformed),
    }
}

/// Appends `GET key` or `SET key value`.
pub fn write_request(key: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
    let parts = [Some(&b"GET"[..]), Some(key)];
    let parts = match value {
        None => parts.to_vec(),
        Some(_) => vec![Some(&b"SET"[..]), Some(key), value],
    };
    out.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts.into_iter().flatten() {
        out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

struct Connection {
    stream: TcpStream,
    to_send: Vec<u8>,
    received: Vec<u8>,
    asked: VecDeque<(Kind, u32, u64)>,
}

/// A closed load over TCP.
pub struct Pipeline {
    contents: Contents,
    mix: Mix,
    window: usize,
    connections: Vec<Connection>,
    random: Random,
    started: Instant,
    puts: u32,
    scratch: Vec<u8>,
    tally: Tally,
}

impl Pipeline {
    /// Connects.
    ///
    /// # Errors
    /// As the system says.
    pub fn new(
        contents: Contents,
        mix: Mix,
        server: SocketAddr,
        connections: usize,
        window: usize,
        seed: u64,
    ) -> io::Result<Self> {
        let connect = |_| {
            let stream = TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let (to_send, received, asked) = (Vec::new(), Vec::new(), VecDeque::new());
            Ok(Connection { stream, to_send, received, asked })
        };
        Ok(Self {
            contents,
            mix,
            window,
            connections: (0..connections).map(connect).collect::<io::Result<_>>()?,
            random: Random::new(seed),
            started: Instant::now(),
            puts: 0,
            scratch: vec![0; READ_BYTES],
            tally: Tally::new(),
        })
    }

    fn now_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Puts all keys of a [`Mix::Fill`].
    ///
    /// # Errors
    /// One sentence, when the server does not take them.
    pub fn fill(&mut self) -> Result<(), String> {
        let failed = |error: io::Error| format!("while filling: {error}");
        while self.turn(true).map_err(failed)? || self.is_busy() {}
        match (self.tally.wrong, &self.mix) {
            (0, Mix::Fill { keys, next, .. }) if keys == next => Ok(()),
            (wrong, _) => Err(format!("{wrong} PUTs were not answered with success")),
        }
    }

    fn is_busy(&self) -> bool {
        self.connections.iter().any(|connection| !connection.asked.is_empty())
    }

    /// Reads, writes, and sleeps if there was nothing to do. Whether there was.
    fn turn(&mut self, may_send: bool) -> io::Result<bool> {
        let mut is_working = false;
        for index in 0..self.connections.len() {
            is_working |= self.read(index)?;
            if may_send {
                is_working |= self.refill(index);
            }
            self.connections[index].flush()?;
        }
        if !is_working {
            self.sleep()?;
        }
        Ok(is_working)
    }

    fn refill(&mut self, index: usize) -> bool {
        let count = self.connections.len();
        let share = self.window * (index + 1) / count - self.window * index / count;
        let room = share.saturating_sub(self.connections[index].asked.len());
        if room == 0 {
            return false;
        }
        let now_nanos = self.now_nanos();
        let mut has_drawn = false;
        for _ in 0..room {
            let Some((kind, key)) = self.mix.draw(&mut self.random) else { break };
            has_drawn = true;
            self.puts = self.puts.wrapping_add(u32::from(kind == Kind::Put));
            let value = (kind == Kind::Put).then(|| self.contents.value(key, self.puts));
            let connection = &mut self.connections[index];
            write_request(&self.contents.key(key), value.as_deref(), &mut connection.to_send);
            connection.asked.push_back((kind, key, now_nanos));
            self.tally.sent += 1;
        }
        has_drawn
    }

    fn read(&mut self, index: usize) -> io::Result<bool> {
        let connection = &mut self.connections[index];
        match connection.stream.read(&mut self.scratch) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => connection.received.extend_from_slice(&self.scratch[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        let now_nanos = self.started.elapsed().as_nanos() as u64;
        let mut done = 0;
        while let Some((reply, bytes)) = parse(&connection.received[done..])
            .map_err(|Malformed| io::Error::other("a reply cannot be read"))?
        {
            let Some((kind, key, since_nanos)) = connection.asked.pop_front() else {
                return Err(io::Error::other("a reply to no request"));
            };
            let is_right = match (kind, reply) {
                (Kind::Put, Reply::Simple(text)) => text == b"OK",
                (Kind::Get, Reply::Bulk(Some(value))) => self.contents.is_value(key, value),
                _ => false,
            };
            match is_right {
                true => self.tally.answer(now_nanos.saturating_sub(since_nanos)),
                false => self.tally.wrong += 1,
            }
            done += bytes;
        }
        connection.received.drain(..done);
        Ok(true)
    }

    fn sleep(&self) -> io::Result<()> {
        let wanted = |connection: &Connection| match connection.to_send.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        };
        let mut descriptors: Vec<PollFd<'_>> = self
            .connections
            .iter()
            .map(|connection| PollFd::new(connection.stream.as_fd(), wanted(connection)))
            .collect();
        let limit = PollTimeout::try_from(SLEEP).expect("a few milliseconds");
        match poll(&mut descriptors, limit) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Connection {
    /// Sends what the connection takes.
    fn flush(&mut self) -> io::Result<()> {
        if self.to_send.is_empty() {
            return Ok(());
        }
        match self.stream.write(&self.to_send) {
            Ok(bytes) => {
                self.to_send.drain(..bytes);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Stream for Pipeline {
    fn run(&mut self, duration: Duration) -> io::Result<()> {
        let end_nanos = self.now_nanos() + duration.as_nanos() as u64;
        while self.now_nanos() < end_nanos {
            self.turn(true)?;
        }
        Ok(())
    }

    fn drain(&mut self) -> io::Result<()> {
        let limit_nanos = self.now_nanos() + PATIENCE.as_nanos() as u64;
        while self.is_busy() && self.now_nanos() < limit_nanos {
            self.turn(false)?;
        }
        self.tally.lost +=
            self.connections.iter().map(|connection| connection.asked.len() as u64).sum::<u64>();
        Ok(())
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn local_ports(&self) -> Vec<u16> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_whole_and_never_in_part() {
        let stream = b"+OK\r\n$5\r\na\r\nbc\r\n$-1\r\n-ERR no\r\n$0\r\n\r\n";
        let mut rest = &stream[..];
        let mut replies = Vec::new();
        while let Some((reply, bytes)) = parse(rest).unwrap() {
            replies.push(reply);
            rest = &rest[bytes..];
        }
        assert!(rest.is_empty());
        assert_eq!(
            replies,
            [
                Reply::Simple(b"OK"),
                Reply::Bulk(Some(b"a\r\nbc")),
                Reply::Bulk(None),
                Reply::Error(b"ERR no"),
                Reply::Bulk(Some(b""))
            ]
        );
        for whole in [&b"+OK\r\n"[..], b"$5\r\na\r\nbc\r\n", b"$-1\r\n", b"-ERR no\r\n"] {
            for cut in 0..whole.len() {
                assert_eq!(parse(&whole[..cut]), Ok(None), "{:?}", whole[..cut].escape_ascii().to_string());
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["?\r\n", "$x\r\n", "$-2\r\n", "$99999999999999999999\r\n", "\r\n", ":1\r\n"] {
            assert_eq!(parse(text.as_bytes()), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn requests_are_arrays_of_strings() {
        let mut out = Vec::new();
        write_request(b"k", None, &mut out);
        write_request(b"k", Some(b"v\r\n"), &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nv\r\n\r\n");
    }
}
