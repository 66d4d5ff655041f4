//! Taking samples of the nodes: with `perf`, which sees the kernel too, or with the nodes' own profiler.
//!
//! `perf record` samples the whole machine by a timer and walks frame pointers, which violet is built
//! with; what is not of the nodes is left out afterwards. (Told to follow single processes, it does its
//! work at every switch between threads, which made nodes 30 % slower here; this way it costs nothing
//! that can be measured.) What the compiler has inlined is found in the binary's debug information.
//! Where `perf` is missing or may not do that, every node is asked for its own profile (`/profile` of its admin server), which shows no
//! kernel frames: a system call is one frame of the C library.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use addr2line::Loader;
use clap::ValueEnum;
use object::{Object, ObjectSegment};

use super::names::{self, UNKNOWN};
use super::stacks::Stacks;

/// Beyond the profile's own time, a node may take this long to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Who takes the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sampler {
    /// perf where it may, else pprof.
    Auto,
    /// `perf record`: user and kernel frames.
    Perf,
    /// The profiler inside the nodes: user frames only.
    Pprof,
}

impl Sampler {
    /// Settles what `Auto` means here; the sentence says why it is not perf.
    ///
    /// # Errors
    /// A sentence, when perf was demanded and cannot be had.
    pub fn settle(self) -> Result<(Self, Option<String>), String> {
        match (self, perf_obstacle()) {
            (Self::Pprof, _) => Ok((Self::Pprof, None)),
            (Self::Perf | Self::Auto, None) => Ok((Self::Perf, None)),
            (Self::Perf, Some(why)) => Err(why),
            (Self::Auto, Some(why)) => Ok((Self::Pprof, Some(why))),
        }
    }

    /// For records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Perf => "perf",
            Self::Pprof => "pprof",
        }
    }
}

/// Why perf cannot sample here, in one sentence.
fn perf_obstacle() -> Option<String> {
    let tried = Command::new("perf")
        .args([
            "record",
            "-q",
            "-a",
            "-e",
            "cpu-clock",
            "--call-graph",
            "fp",
            "-o",
            "/dev/null",
            "--",
            "true",
        ])
        .output();
    match tried {
        Err(error) => Some(format!("perf cannot be run: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("perf may not sample: {}", first_line(&output.stderr))),
    }
}

/// What is sampled.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The nodes' processes.
    pub pids: &'a [u32],
    /// Their admin servers.
    pub admins: &'a [SocketAddr],
    /// Their binary.
    pub binary: &'a Path,
    /// Where perf's file goes.
    pub directory: &'a Path,
    /// For how long, in whole seconds.
    pub seconds: u64,
    /// Samples per second of processor time.
    pub hz: u32,
}

/// Takes samples with a settled sampler; blocks as long as that takes. The second step, which reads
/// them, is left to the caller: it costs processor time that the nodes may need.
///
/// # Errors
/// One sentence.
pub fn record(sampler: Sampler, target: &Target<'_>) -> Result<Recording, String> {
    match sampler {
        Sampler::Perf | Sampler::Auto => record_with_perf(target).map(Recording::Perf),
        Sampler::Pprof => record_with_pprof(target).map(Recording::Pprof),
    }
}

/// Samples that have not been read yet.
#[derive(Debug)]
pub enum Recording {
    /// perf's file.
    Perf(PathBuf),
    /// What each node answered.
    Pprof(Vec<String>),
}

impl Recording {
    /// Reads the samples.
    ///
    /// # Errors
    /// One sentence.
    pub fn stacks(self, target: &Target<'_>) -> Result<Stacks, String> {
        match self {
            Self::Perf(path) => {
                let arguments = ["script", "-F", "comm,pid,ip,sym,dso", "--no-inline", "-i"];
                let output = Command::new("perf").args(arguments).arg(&path).output();
                let text = text_of("perf script", output)?;
                // It is large, and everything in it is in the stacks.
                let _ = std::fs::remove_file(path);
                let binary = std::fs::canonicalize(target.binary)
                    .map_err(|error| format!("cannot find {}: {error}", target.binary.display()))?;
                Ok(Script::new(&binary, target.pids)?.read(&text))
            }
            Self::Pprof(parts) => parts.iter().try_fold(Stacks::default(), |mut all, part| {
                all.add_all(shortened(part)?);
                Ok(all)
            }),
        }
    }
}

fn record_with_perf(target: &Target<'_>) -> Result<PathBuf, String> {
    let path = target.directory.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-a", "-e", "cpu-clock", "--call-graph", "fp", "-F", &target.hz.to_string()]);
    perf.arg("-o").arg(&path).args(["--", "sleep", &target.seconds.to_string()]);
    text_of("perf record", perf.stdin(Stdio::null()).output())?;
    Ok(path)
}

fn text_of(what: &str, output: std::io::Result<Output>) -> Result<String, String> {
    let output = output.map_err(|error| format!("{what} cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what} failed: {}", first_line(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it does not say why").to_owned()
}

/// Reads what `perf script` prints.
struct Script<'a> {
    pids: &'a [u32],
    binary: &'a Path,
    loader: Loader,
    code: CodeSegment,
    /// Names at an address of the binary, outermost first; most addresses come often.
    known: HashMap<u64, Vec<String>>,
}

impl<'a> Script<'a> {
    fn new(binary: &'a Path, pids: &'a [u32]) -> Result<Self, String> {
        let loader = Loader::new(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
        let code = CodeSegment::of(binary)?;
        Ok(Self { pids, binary, loader, code, known: HashMap::new() })
    }

    /// Samples are paragraphs: a line `thread pid`, then one line a frame, innermost first.
    fn read(&mut self, text: &str) -> Stacks {
        let mut stacks = Stacks::default();
        for sample in text.split("\n\n") {
            let mut lines = sample.lines().filter(|line| !line.is_empty());
            let head = lines.next().and_then(|line| line.trim().rsplit_once(char::is_whitespace));
            let Some((thread, pid)) = head else { continue };
            if !pid.parse().is_ok_and(|pid| self.pids.contains(&pid)) {
                continue;
            }
            let mut stack = Vec::new();
            for (depth, line) in lines.enumerate() {
                self.push_frames(line, depth == 0, &mut stack);
            }
            stack.push(thread.trim().replace([';', ' '], "_"));
            stacks.add(stack.into_iter().rev(), 1);
        }
        stacks
    }

    /// Adds what one line `address name (object)` stands for, innermost first.
    fn push_frames(&mut self, line: &str, is_innermost: bool, stack: &mut Vec<String>) {
        let Some((address, rest)) = line.trim().split_once(' ') else { return };
        let (name, object) = rest.rsplit_once(" (").unwrap_or((rest, ""));
        let object = object.trim_end_matches(')');
        if object.starts_with("[kernel") || object.starts_with("[guest.kernel") {
            stack.extend(names::shorten_kernel(name));
        } else if Path::new(object) == self.binary {
            // All but the innermost address are where the call returns to, behind the call itself.
            let offset = u64::from_str_radix(address, 16).unwrap_or(0);
            let probe = self.code.address_at(if is_innermost { offset } else { offset.saturating_sub(1) });
            stack.extend(self.names_at(probe, name).iter().rev().cloned());
        } else {
            stack.extend(names::shorten_library(name, object));
        }
    }

    fn names_at(&mut self, address: u64, symbol: &str) -> &[String] {
        let loader = &self.loader;
        self.known.entry(address).or_insert_with(|| {
            let mut found = inlined_names(loader, address).unwrap_or_default();
            if found.is_empty() {
                found.push(symbol.to_owned());
            }
            found.iter().filter_map(|name| names::shorten(name)).collect()
        })
    }
}

/// How the part of a file that holds its code is placed in memory: perf names places by where they are
/// in the file, debug information by their address.
#[derive(Clone, Copy, Debug)]
struct CodeSegment {
    address: u64,
    file_offset: u64,
    bytes: u64,
}

impl CodeSegment {
    fn of(binary: &Path) -> Result<Self, String> {
        let cannot = |why: &dyn std::fmt::Display| format!("{}: {why}", binary.display());
        let bytes = std::fs::read(binary).map_err(|error| cannot(&error))?;
        let file = object::File::parse(&*bytes).map_err(|error| cannot(&error))?;
        let entry = file.entry();
        let holds_entry =
            |part: &object::Segment<'_, '_>| (part.address()..part.address() + part.size()).contains(&entry);
        let part = file.segments().find(holds_entry).ok_or_else(|| cannot(&"it has no code"))?;
        let (file_offset, bytes) = part.file_range();
        Ok(Self { address: part.address(), file_offset, bytes })
    }

    fn address_at(self, offset: u64) -> u64 {
        let is_inside = (self.file_offset..self.file_offset + self.bytes).contains(&offset);
        if is_inside { offset - self.file_offset + self.address } else { offset }
    }
}

/// The function at an address and those inlined there, outermost first.
fn inlined_names(loader: &Loader, address: u64) -> Option<Vec<String>> {
    let mut frames = loader.find_frames(address).ok()?;
    let mut found = Vec::new();
    while let Some(frame) = frames.next().ok()? {
        let name = frame.function.as_ref().and_then(|name| Some(name.demangle().ok()?.into_owned()));
        found.push(name.unwrap_or_else(|| UNKNOWN.to_owned()));
    }
    found.reverse();
    // Assembly has lines but no functions; its symbol says more.
    if found == [UNKNOWN] { None } else { Some(found) }
}

fn record_with_pprof(target: &Target<'_>) -> Result<Vec<String>, String> {
    std::thread::scope(|scope| {
        let ask = |admin: &SocketAddr| {
            let admin = *admin;
            scope.spawn(move || fetch(admin, target.seconds, target.hz))
        };
        let asked: Vec<_> = target.admins.iter().map(ask).collect();
        asked.into_iter().map(|asked| asked.join().expect("fetching does not panic")).collect()
    })
}

/// Asks one node for a profile with system calls.
fn fetch(admin: SocketAddr, seconds: u64, hz: u32) -> Result<String, String> {
    let talk = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(admin)?;
        stream.set_read_timeout(Some(Duration::from_secs(seconds) + ANSWER_TIME_MAX))?;
        write!(
            stream,
            "GET /profile?seconds={seconds}&hz={hz}&format=folded&system=on HTTP/1.1\r\nHost: {admin}\r\n\
             Connection: close\r\n\r\n"
        )?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        Ok(String::from_utf8_lossy(&response).into_owned())
    };
    let response = talk().map_err(|error| format!("{admin}: {error}"))?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or(format!("{admin}: that is no admin server"))?;
    if head.starts_with("HTTP/1.1 200 ") {
        Ok(body.to_owned())
    } else {
        Err(format!("{admin}: {}", body.trim()))
    }
}

/// A node's own profile with our names. A node that did nothing has an empty one.
fn shortened(folded: &str) -> Result<Stacks, String> {
    let mut stacks = Stacks::default();
    for line in folded.lines().filter(|line| !line.is_empty()) {
        let parts = line.rsplit_once(' ').and_then(|(stack, count)| Some((stack, count.parse().ok()?)));
        let (stack, samples) = parts.ok_or_else(|| format!("a node's profile has a line '{line}'"))?;
        let mut frames = stack.split(';');
        let thread = frames.next().unwrap_or_default().to_owned();
        let below = frames.filter(|frame| !is_profilers_own(frame)).filter_map(shorten_pprof);
        stacks.add(std::iter::once(thread).chain(below), samples);
    }
    Ok(stacks)
}

/// Names of the C library begin with underscores there, too.
fn shorten_pprof(name: &str) -> Option<String> {
    let is_library = name.starts_with("__") && !name.contains("::") && !name.starts_with("__rust");
    if is_library { names::shorten_library(name, "libc") } else { names::shorten(name) }
}

/// The signal's own frames are on top of every stack.
fn is_profilers_own(frame: &str) -> bool {
    frame.starts_with("pprof::") || frame.starts_with("backtrace::") || frame.starts_with("__restore_rt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::ObjectSymbol;

    #[test]
    fn a_script_becomes_stacks() {
        let binary = std::env::current_exe().expect("this test");
        let text = "v-worker-1 77\n\
            \tffffffff81e9b92b skb_attempt_defer_free ([kernel.kallsyms])\n\
            \tffffffff8225aa01 do_syscall_64 ([kernel.kallsyms])\n\
            \t          10b060 __recvmmsg (/usr/lib/x86_64-linux-gnu/libc.so.6)\n\
            \t          2dac2c violet::server::listener::Listener<P>::run (/elsewhere/violet)\n\
            \t           891f5 start_thread (/usr/lib/x86_64-linux-gnu/libc.so.6)\n\n\
            a b 5\n\t 1 [unknown] ([unknown])\n\nswapper 0\n\tff idle ([kernel.kallsyms])\n\n";
        let stacks = Script::new(&binary, &[77, 5]).expect("it is readable").read(text);
        assert_eq!(
            stacks.text(),
            "a_b;[unknown]_[unknown] 1\nv-worker-1;server::Listener::run;recvmmsg;skb_attempt_defer_free_[k] 1\n"
        );
    }

    #[inline(never)]
    fn landmark() -> u64 {
        std::hint::black_box(77)
    }

    #[test]
    fn functions_of_this_program_have_names_at_their_places_in_its_file() {
        let binary = std::env::current_exe().expect("this test");
        let bytes = std::fs::read(&binary).expect("it is readable");
        let file = object::File::parse(&*bytes).expect("a program");
        let is_it =
            |symbol: &object::Symbol<'_, '_>| symbol.name().is_ok_and(|name| name.contains("landmark"));
        let symbol = file.symbols().find(is_it).expect("it is there");
        let code = CodeSegment::of(&binary).expect("it has code");
        let offset = symbol.address() - code.address + code.file_offset;
        let loader = Loader::new(&binary).expect("it is readable");
        let names = inlined_names(&loader, code.address_at(offset)).expect("names");
        assert!(names[0].ends_with("sampler::tests::landmark"), "{names:?}, {}", landmark());
    }

    #[test]
    fn a_nodes_own_profile_gets_our_names() {
        let text = "v-listener;__clone3;std::thread::x;violet::server::job::Runner::run_batch;__sendmmsg 7\n";
        let stacks = shortened(text).expect("a profile");
        assert_eq!(stacks.text(), "v-listener;server::Runner::run_batch;sendmmsg 7\n");
        assert_eq!(shortened("x\n"), Err("a node's profile has a line 'x'".into()));
    }
}
