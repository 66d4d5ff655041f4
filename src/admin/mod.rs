//! The admin HTTP server: metrics, counters, health, profiles. For people on this machine.
//!
//! ```text
//! GET /metrics                            all counts, as Prometheus reads them
//! GET /stats                              counters and the loss ledger as JSON
//! GET /healthz                            "ok"
//! GET /profile?seconds=N&hz=99            flame graph (SVG); &format=folded for stacks as text,
//!                                         &system=on to see system calls (see `profile`)
//! ```
//!
//! A few threads accept from one listener, one request per connection, with time-outs and a limit on
//! the request's size, so that a stuck client can cost no more than one of them. It listens on loopback
//! only, because nothing here is authenticated. Deliberately not here: keep-alive, TLS, anything that
//! changes the node.

pub mod profile;

use crate::metrics::Metric;
use crate::node::Node;
use profile::{Profiles, Refusal};
use std::fmt::{self, Write as _};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Connections that are served at once. One may be a profile that takes a minute.
const THREADS: usize = 3;
/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// A client has this long to send its request, and as long to take each part of the response.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept (out of descriptors), which would repeat at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the admin server could not start; one line.
#[derive(Debug)]
pub enum AdminError {
    /// The address is not loopback.
    NotLoopback(SocketAddr),
    /// The system refused the address.
    Refused(SocketAddr, io::Error),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoopback(address) => {
                write!(f, "admin: {address} is not loopback; nothing here is authenticated")
            }
            Self::Refused(address, error) if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "admin: {address} is taken")
            }
            Self::Refused(address, error) => write!(f, "admin: cannot listen on {address}: {error}"),
        }
    }
}

impl std::error::Error for AdminError {}

/// The running admin server.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share.
#[derive(Debug)]
struct Desk {
    node: Arc<Node>,
    listener: TcpListener,
    profiles: Profiles,
    stop: AtomicBool,
}

impl Admin {
    /// Listens and starts the threads.
    ///
    /// # Errors
    /// [`AdminError`] when the address is not loopback or cannot be had.
    pub fn start(address: SocketAddr, node: &Arc<Node>) -> Result<Self, AdminError> {
        Self::serve(Self::bind(address)?, node)
    }

    /// Takes the address. Do this before the node answers anyone: a node that cannot have its admin
    /// address must not have been part of the cluster first.
    ///
    /// # Errors
    /// [`AdminError`] when the address is not loopback or cannot be had.
    pub fn bind(address: SocketAddr) -> Result<TcpListener, AdminError> {
        if !address.ip().is_loopback() {
            return Err(AdminError::NotLoopback(address));
        }
        TcpListener::bind(address).map_err(|error| AdminError::Refused(address, error))
    }

    /// Serves on an address that [`Admin::bind`] took.
    ///
    /// # Errors
    /// [`AdminError`] when the threads cannot be started.
    pub fn serve(listener: TcpListener, node: &Arc<Node>) -> Result<Self, AdminError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = listener.local_addr().map_err(|error| AdminError::Refused(unknown, error))?;
        let refused = |error| AdminError::Refused(address, error);
        let (profiles, stop) = (Profiles::default(), AtomicBool::new(false));
        let desk = Arc::new(Desk { node: Arc::clone(node), listener, profiles, stop });
        let mut threads = Vec::with_capacity(THREADS);
        for _ in 0..THREADS {
            let desk = Arc::clone(&desk);
            threads.push(Builder::new().name("v-admin".into()).spawn(move || desk.run()).map_err(refused)?);
        }
        Ok(Self { address, desk, threads })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends and joins the threads; a running profile is cut short.
    pub fn stop(self) {
        self.desk.stop.store(true, Ordering::Release);
        self.desk.profiles.cut_short();
        for _ in 0..self.threads.len() {
            // A connection is what wakes a thread that accepts.
            let _ = TcpStream::connect_timeout(&self.address, CLIENT_TIME_MAX);
        }
        for thread in self.threads {
            // A thread that panicked has said so itself; there is nothing to save.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            match self.listener.accept() {
                // A client that went away or stalled is its own affair.
                Ok((stream, _)) => drop(self.serve(stream)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(CLIENT_TIME_MAX))?;
        let response = match read_head(&mut stream)? {
            Head::Complete(head) => self.answer(&head),
            Head::TooLong => Response::text(431, "request too long\n"),
        };
        response.write(&mut stream)
    }

    fn answer(&self, head: &str) -> Response {
        let mut words = head.lines().next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(_)) = (words.next(), words.next(), words.next()) else {
            return Response::text(400, "not an HTTP request\n");
        };
        if method != "GET" {
            return Response::text(405, "only GET\n");
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        match path {
            "/metrics" => {
                Response { kind: "text/plain; version=0.0.4", ..Response::text(200, self.metrics()) }
            }
            "/stats" => Response { kind: "application/json", ..Response::text(200, self.node.stats_json()) },
            "/healthz" => Response::text(200, "ok\n"),
            "/profile" => self.profile(query),
            _ => Response::text(404, "there are /metrics, /stats, /healthz and /profile\n"),
        }
    }

    fn metrics(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        for metric in Metric::ALL {
            let (name, total) = (metric.name(), self.node.metrics().total(*metric));
            writeln!(text, "# HELP violet_{name} {} Unit: {}.", metric.doc(), metric.unit())
                .and_then(|()| writeln!(text, "# TYPE violet_{name} counter\nviolet_{name} {total}"))
                .expect("a string takes everything");
        }
        text
    }

    fn profile(&self, query: &str) -> Response {
        match self.profiles.take(query) {
            Ok(profile) => Response { status: 200, kind: profile.kind, body: profile.body },
            Err(Refusal::BadQuery(why)) => Response::text(400, format!("{why}\n")),
            Err(Refusal::Busy) => Response::text(409, "a profile is being taken\n"),
            Err(Refusal::Failed(why)) => Response::text(500, format!("{why}\n")),
        }
    }
}

/// What a client has sent.
enum Head {
    /// Everything up to the empty line.
    Complete(String),
    /// More than is allowed.
    TooLong,
}

fn read_head(stream: &mut TcpStream) -> io::Result<Head> {
    let deadline = Instant::now() + CLIENT_TIME_MAX;
    let mut head = Vec::with_capacity(1024);
    let mut part = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        // The limit is on the whole request: a byte now and then must not hold a thread.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => head.extend_from_slice(&part[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if REQUEST_BYTES_MAX < head.len() {
            return Ok(Head::TooLong);
        }
    }
    Ok(Head::Complete(String::from_utf8_lossy(&head).into_owned()))
}

struct Response {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
}

impl Response {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.into().into_bytes() }
    }

    fn write(&self, stream: &mut TcpStream) -> io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            431 => "Request Header Fields Too Large",
            _ => "Internal Server Error",
        };
        write!(
            stream,
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.kind,
            self.body.len()
        )?;
        stream.write_all(&self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::metrics::Metrics;
    use crate::node::Birth;

    fn start() -> (Admin, Arc<Node>) {
        let birth = Birth {
            now: crate::time::Instant::ZERO,
            pid: 1,
            seed: 1,
            cluster_key: [1; 32],
            members: vec![(std::net::Ipv4Addr::LOCALHOST, 1).into()],
            large_pages: false,
            sites: std::collections::BTreeMap::new(),
        };
        let config = Config::default();
        let node = crate::control::Control::start(&config, &birth, Arc::new(Metrics::default())).node;
        let loopback = "127.0.0.1:0".parse().expect("an address");
        (Admin::start(loopback, &node).expect("it starts"), node)
    }

    fn ask(admin: &Admin, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(admin.address()).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        stream.write_all(request).expect("sent");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("a response");
        String::from_utf8(response).expect("text")
    }

    fn get(admin: &Admin, target: &str) -> (String, String) {
        let response = ask(admin, format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
        (head.lines().next().expect("a status line").to_owned(), body.to_owned())
    }

    #[test]
    fn every_path_answers() {
        let (admin, node) = start();
        node.metrics().sheet().add(Metric::Answered, 7);
        assert_eq!(get(&admin, "/healthz"), ("HTTP/1.1 200 OK".into(), "ok\n".into()));
        let (status, metrics) = get(&admin, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(metrics.contains(
            "# HELP violet_answered Requests answered by this node, errors included. Unit: requests.\n\
             # TYPE violet_answered counter\nviolet_answered 7\n"
        ));
        assert_eq!(metrics.lines().count(), Metric::ALL.len() * 3);
        assert_eq!(get(&admin, "/stats").0, "HTTP/1.1 200 OK");
        assert_eq!(get(&admin, "/nothing").0, "HTTP/1.1 404 Not Found");
        assert_eq!(get(&admin, "/profile?seconds=0").0, "HTTP/1.1 400 Bad Request");
        admin.stop();
    }

    #[test]
    fn what_is_no_request_is_refused_and_harms_nobody() {
        let (admin, _) = start();
        let status = |request: &[u8]| ask(&admin, request).lines().next().map(str::to_owned);
        assert_eq!(status(b"GARBAGE\r\n\r\n").as_deref(), Some("HTTP/1.1 400 Bad Request"));
        assert_eq!(status(b"POST / HTTP/1.1\r\n\r\n").as_deref(), Some("HTTP/1.1 405 Method Not Allowed"));
        let too_long = vec![b'a'; REQUEST_BYTES_MAX + 1];
        assert_eq!(status(&too_long).as_deref(), Some("HTTP/1.1 431 Request Header Fields Too Large"));
        // A client that leaves in the middle costs nothing.
        drop(TcpStream::connect(admin.address()).expect("connected"));
        assert_eq!(get(&admin, "/healthz").1, "ok\n");
        admin.stop();
    }

    #[test]
    fn one_profile_at_a_time_and_stopping_cuts_it_short() {
        let (admin, _) = start();
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(|| get(&admin, "/profile?seconds=60&format=folded"));
            while !admin.desk.profiles.is_running() {
                std::thread::yield_now();
            }
            assert_eq!(get(&admin, "/profile?seconds=1").0, "HTTP/1.1 409 Conflict");
            admin.desk.profiles.cut_short();
            first.join().expect("no panic")
        });
        assert_eq!(first.0, "HTTP/1.1 200 OK");
        admin.stop();
    }

    #[test]
    fn only_loopback_will_do() {
        let (admin, node) = start();
        let error = |address: &str| {
            let address = address.parse().expect("an address");
            Admin::start(address, &node).expect_err("not allowed").to_string()
        };
        assert_eq!(error("0.0.0.0:0"), "admin: 0.0.0.0:0 is not loopback; nothing here is authenticated");
        let taken = admin.address().to_string();
        assert_eq!(error(&taken), format!("admin: {taken} is taken"));
        admin.stop();
    }
}
