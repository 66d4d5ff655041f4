//! Flame graphs of the running process, and the client that fetches them.
//!
//! A sampling profiler counts where the process spends processor time, by thread. Samples inside the C
//! library are left out, because its frames cannot always be walked safely from a signal; and since
//! system calls are made from there, a node that mostly sends and receives looks idle. `system=on`
//! takes them in, at a small risk of a deadlock: not for a node that anybody depends on. What happens
//! inside the kernel only `perf` shows. No thread is stopped: the sample is taken by the thread that is
//! hit, and a hit while another is being noted is dropped. Frames outside a thread's own work (how
//! threads start) are cut off. What takes time is to find the names, most of all for the first profile
//! of a process (0.8 s); a thread of the lowest priority does that, so that on a busy node it gets only
//! what requests leave, and takes longer instead. The first profile allocates about 135 MB for the
//! collector, which are never returned.

use parking_lot::{Condvar, Mutex};
use pprof::{Frames, ProfilerGuardBuilder, Report};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long a profile may take.
pub const SECONDS: RangeInclusive<u64> = 1..=60;
/// Samples per second of processor time; the kernel's tick allows no more than this.
const HZ: RangeInclusive<u64> = 1..=1_000;
/// Just off 100, so that work on a timer is not always or never hit.
const HZ_DEFAULT: u64 = 99;
/// Lowest priority of a thread.
#[cfg(target_os = "linux")]
const NICENESS_MAX: i32 = 19;
/// A busy node may take this much longer than the profile itself to hand it over.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(180);
/// Where the stack cannot be walked safely.
const BLOCKLIST: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Takes profiles, one at a time.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    is_running: AtomicBool,
    is_cut_short: Mutex<bool>,
    cut: Condvar,
}

/// Why there is no profile.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    BadQuery(String),
    Busy,
    Failed(String),
}

/// A profile, ready to send.
pub(super) struct Profile {
    pub(super) kind: &'static str,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    seconds: u64,
    hz: u64,
    is_folded: bool,
    with_system: bool,
}

impl Profiles {
    /// Takes the profile that a query string asks for.
    pub(super) fn take(&self, query: &str) -> Result<Profile, Refusal> {
        let wanted = parse(query).map_err(Refusal::BadQuery)?;
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Err(Refusal::Busy);
        }
        let profile = self.sample_aside(&wanted);
        self.is_running.store(false, Ordering::Release);
        profile.map_err(|why| Refusal::Failed(format!("the profiler failed: {why}")))
    }

    /// Whether one is being taken.
    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// Ends the running profile now, and every later one at once: the process is stopping.
    pub(super) fn cut_short(&self) {
        *self.is_cut_short.lock() = true;
        self.cut.notify_all();
    }

    /// Samples on a thread of its own, which gives way to all others.
    fn sample_aside(&self, wanted: &Wanted) -> Result<Profile, String> {
        let sample = || {
            give_way();
            self.sample(wanted).map_err(|error| error.to_string())
        };
        std::thread::scope(|scope| {
            let thread = Builder::new().name("v-profile".into()).spawn_scoped(scope, sample);
            let ended = thread.map_err(|error| error.to_string())?.join();
            ended.unwrap_or_else(|_| Err("it panicked".into()))
        })
    }

    fn sample(&self, wanted: &Wanted) -> Result<Profile, pprof::Error> {
        let hz = i32::try_from(wanted.hz).expect("the query's range is smaller");
        let blocklist = if wanted.with_system { &[][..] } else { &BLOCKLIST };
        let guard = ProfilerGuardBuilder::default().frequency(hz).blocklist(blocklist).build()?;
        self.wait(Duration::from_secs(wanted.seconds));
        let report = guard.report().frames_post_processor(cut_start_up).build()?;
        if wanted.is_folded {
            return Ok(Profile { kind: "text/plain; charset=utf-8", body: folded(&report).into_bytes() });
        }
        let mut body = Vec::new();
        report.flamegraph(&mut body)?;
        if body.is_empty() {
            // The library writes nothing at all when there was not one sample.
            body = EMPTY_SVG.into();
        }
        Ok(Profile { kind: "image/svg+xml", body })
    }

    fn wait(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut is_cut_short = self.is_cut_short.lock();
        while !*is_cut_short && !self.cut.wait_until(&mut is_cut_short, deadline).timed_out() {}
    }
}

/// Gives this thread the lowest priority.
#[cfg(target_os = "linux")]
fn give_way() {
    // On Linux "the calling process" of this call is the calling thread. If it is refused, the profile
    // costs what it costs.
    let _ = rustix::process::setpriority_process(None, NICENESS_MAX);
}

/// Elsewhere priorities belong to whole processes.
#[cfg(not(target_os = "linux"))]
fn give_way() {}

const EMPTY_SVG: &str = concat!(
    r#"<svg xmlns="http://www.w3.org/2000/svg" width="600" height="40">"#,
    r#"<text x="10" y="25">No samples: the process used almost no processor time.</text></svg>"#,
    "\n"
);

fn parse(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted { seconds: 10, hz: HZ_DEFAULT, is_folded: false, with_system: false };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("seconds", text) => wanted.seconds = number("seconds", text, &SECONDS)?,
            ("hz", text) => wanted.hz = number("hz", text, &HZ)?,
            ("format", "svg") => wanted.is_folded = false,
            ("format", "folded") => wanted.is_folded = true,
            ("format", text) => return Err(format!("format: '{text}' is not allowed; allowed: svg|folded")),
            ("system", "off") => wanted.with_system = false,
            ("system", "on") => wanted.with_system = true,
            ("system", text) => return Err(format!("system: '{text}' is not allowed; allowed: on|off")),
            (name, _) => return Err(format!("{name}: there are seconds, hz, format and system")),
        }
    }
    Ok(wanted)
}

fn number(name: &str, text: &str, allowed: &RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| allowed.contains(number));
    let (min, max) = (allowed.start(), allowed.end());
    number.ok_or_else(|| format!("{name}: '{text}' is not allowed; allowed: {min} to {max}"))
}

/// The outermost frame that belongs to the work of a thread is called by this one.
const START_UP_END: &[u8] = b"__rust_begin_short_backtrace";

/// Cuts off how the thread was started. The innermost frame comes first.
fn cut_start_up(frames: &mut Frames) {
    let is_end = |symbol: &pprof::Symbol| {
        let name = symbol.name.as_deref().unwrap_or_default();
        name.windows(START_UP_END.len()).any(|part| part == START_UP_END)
    };
    if let Some(end) = frames.frames.iter().position(|inlined| inlined.iter().any(is_end)) {
        // What was inlined into that frame is part of the work; it stands before it.
        let work = frames.frames[end].iter().position(is_end).unwrap_or(0);
        frames.frames[end].truncate(work);
        frames.frames.truncate(end + 1);
    }
}

/// One line a stack, outermost first, the thread's name at the root.
fn folded(report: &Report) -> String {
    let mut lines: Vec<String> = report
        .data
        .iter()
        .map(|(stack, count)| {
            let mut line = stack.thread_name_or_id();
            for symbol in stack.frames.iter().rev().flat_map(|frame| frame.iter().rev()) {
                write!(line, ";{symbol}").expect("a string takes everything");
            }
            format!("{line} {count}\n")
        })
        .collect();
    lines.sort_unstable();
    lines.concat()
}

/// Fetches a flame graph from a node's admin server; `with_system` as in the file's introduction.
///
/// # Errors
/// One line: nobody there, or what the node said.
pub fn fetch(admin: SocketAddr, seconds: u64, with_system: bool) -> Result<Vec<u8>, String> {
    let talk = || -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(seconds) + HAND_OVER_TIME_MAX))?;
        let system = if with_system { "on" } else { "off" };
        write!(
            stream,
            "GET /profile?seconds={seconds}&system={system} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
        )?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        Ok(response)
    };
    let response = talk().map_err(|error| format!("{admin}: {error}"))?;
    let no_http = || format!("{admin}: that is no admin server");
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(no_http)?;
    let (head, body) = (&response[..end], &response[end + 4..]);
    if head.starts_with(b"HTTP/1.1 200 ") {
        return Ok(body.to_vec());
    }
    Err(format!("{admin}: {}", String::from_utf8_lossy(body).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_threads_start_is_cut_off() {
        let symbol = |name: &str| pprof::Symbol {
            name: Some(name.as_bytes().to_vec()),
            addr: None,
            lineno: None,
            filename: None,
        };
        let start_up = "_ZN3std3sys9backtrace28__rust_begin_short_backtrace17h0E";
        let check = |stack: &[&[&str]], expected: &[&[&str]]| {
            let mut frames = Frames {
                frames: stack.iter().map(|names| names.iter().map(|name| symbol(name)).collect()).collect(),
                thread_name: "v-worker-1".into(),
                thread_id: 1,
                sample_timestamp: std::time::SystemTime::UNIX_EPOCH,
            };
            cut_start_up(&mut frames);
            let names =
                |frame: &Vec<pprof::Symbol>| frame.iter().map(pprof::Symbol::name).collect::<Vec<_>>();
            assert_eq!(frames.frames.iter().map(names).collect::<Vec<_>>(), expected);
        };
        check(&[&["leaf"], &["run", start_up, "spawn"], &["clone3"]], &[&["leaf"], &["run"]]);
        check(&[&["leaf"], &[start_up], &["clone3"]], &[&["leaf"], &[]]);
        check(&[&["leaf"], &["main"]], &[&["leaf"], &["main"]]);
    }

    #[test]
    fn queries_are_read_or_refused_with_what_is_allowed() {
        assert_eq!(parse(""), Ok(Wanted { seconds: 10, hz: 99, is_folded: false, with_system: false }));
        let wanted = Wanted { seconds: 60, hz: 1, is_folded: true, with_system: true };
        assert_eq!(parse("seconds=60&hz=1&format=folded&system=on"), Ok(wanted));
        assert_eq!(parse("seconds=61"), Err("seconds: '61' is not allowed; allowed: 1 to 60".into()));
        assert_eq!(parse("hz=0"), Err("hz: '0' is not allowed; allowed: 1 to 1000".into()));
        assert_eq!(parse("format=png"), Err("format: 'png' is not allowed; allowed: svg|folded".into()));
        assert_eq!(parse("x"), Err("x: there are seconds, hz, format and system".into()));
    }
}
