//! Ports for processes that tests start: free for UDP and TCP, and not among those that the system gives away.
//!
//! A port that `bind` with port 0 has found may be anybody's as soon as it is let go: other tests and the nodes' own
//! send sockets are given ports from the same range. These are drawn below that range (32768 on Linux), each only
//! once by one process, and from a start that depends on the process, so that runs side by side seldom meet.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Where they start; the Makefile's own ports are above the last one.
const FIRST: u16 = 10_000;
/// How many there are.
const COUNT: u16 = 14_000;
/// How many a process draws before it meets those of the next one.
const STRIDE: u16 = 40;

static DRAWN: AtomicU16 = AtomicU16::new(0);

/// `count` ports in a row that nobody uses at an address.
pub fn free_at(address: IpAddr, count: u16) -> u16 {
    let start = (std::process::id() % u32::from(COUNT / STRIDE)) as u16 * STRIDE;
    let is_free =
        |port: u16| UdpSocket::bind((address, port)).is_ok() && TcpListener::bind((address, port)).is_ok();
    for _ in 0..COUNT {
        let drawn = DRAWN.fetch_add(count, Ordering::Relaxed);
        let first = FIRST + (start + drawn) % (COUNT - count);
        if (first..first + count).all(is_free) {
            return first;
        }
    }
    panic!("no {count} free ports in a row between {FIRST} and {}", FIRST + COUNT);
}

/// The same at 127.0.0.1.
pub fn free(count: u16) -> u16 {
    free_at(Ipv4Addr::LOCALHOST.into(), count)
}
