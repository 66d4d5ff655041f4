//! One request at a time: the load that measures a server nobody else asks.
//!
//! One connected socket, a blocking `send`, a blocking `recv` and nothing between them, so that what is
//! measured is two trips through the kernel and the server. Over TCP [`super::redis`] does it with a window
//! of one.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::codec::{Answer, Asked, Codec};
use super::generator::PATIENCE;
use super::load::{Mix, Stream, Tally};
use crate::sockets;
use crate::values::Random;

/// The load.
pub struct Ping<'a> {
    codec: &'a Codec,
    mix: Mix,
    socket: UdpSocket,
    local_port: u16,
    random: Random,
    number: u64,
    request: Vec<u8>,
    reply: Vec<u8>,
    tally: Tally,
}

impl<'a> Ping<'a> {
    /// Opens the socket.
    ///
    /// # Errors
    /// As the system says.
    pub fn new(codec: &'a Codec, mix: Mix, server: SocketAddr, seed: u64) -> io::Result<Self> {
        let opened = sockets::open(0)?;
        opened.socket.connect(server)?;
        opened.socket.set_read_timeout(Some(PATIENCE))?;
        let mut tally = Tally::new();
        tally.receive_buffer_bytes = opened.receive_buffer_bytes;
        Ok(Self {
            codec,
            mix,
            local_port: opened.socket.local_addr()?.port(),
            socket: opened.socket,
            random: Random::new(seed),
            number: 0,
            request: Vec::new(),
            reply: vec![0; codec.reply_bytes_max()],
            tally,
        })
    }

    /// Asks once; returns when the answer has come or is lost.
    fn ask(&mut self) -> io::Result<()> {
        let Some((kind, key)) = self.mix.draw(&mut self.random) else { return Ok(()) };
        self.number += 1;
        self.request.clear();
        self.codec.write(kind, key, self.number, self.number as u32, &mut self.request);
        let sent = Instant::now();
        self.socket.send(&self.request)?;
        self.tally.sent += 1;
        let mut asked = Asked { kind, key, pieces_seen: 0 };
        loop {
            let bytes = match self.socket.recv(&mut self.reply) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.tally.lost += 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let nanos = sent.elapsed().as_nanos() as u64;
            let datagram = &self.reply[..bytes];
            if !self.codec.number(datagram).is_some_and(|carried| self.codec.is_number(self.number, carried))
            {
                self.tally.stray += 1;
                continue;
            }
            match self.codec.check(&mut asked, datagram) {
                Answer::Partial => continue,
                Answer::Right => self.tally.answer(nanos),
                Answer::Refused => self.tally.refused += 1,
                Answer::Wrong => self.tally.wrong += 1,
            }
            return Ok(());
        }
    }
}

impl Stream for Ping<'_> {
    fn run(&mut self, duration: Duration) -> io::Result<()> {
        let started = Instant::now();
        while started.elapsed() < duration {
            self.ask()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn local_ports(&self) -> Vec<u16> {
        vec![self.local_port]
    }
}
