//! What the kernel counts while a sample is taken: processor time to the nanosecond, drops, steal.
//!
//! Processor time is the sum of the scheduler's per-thread run times, since the tick counters of `/proc/stat`
//! are too coarse for a second and wrong at times. What *others* used is the same sum over all other
//! processes; what ends within a sample is missed. Deliberately not here: hardware counters.

use std::collections::HashMap;
use std::fs;

use serde::Serialize;

/// The kernel's counts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Nanoseconds of processor time by process and thread. By thread, because a process's sum would fall
    /// when one of its threads ends.
    run_nanos: HashMap<(u32, u32), u64>,
    steal_ticks: u64,
    all_ticks: u64,
    receive_buffer_errors: u64,
    drops: HashMap<u16, u64>,
}

/// What happened between two snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Between {
    /// Nanoseconds of processor time of all but the server and this program.
    pub others_nanos: u64,
    /// Share of all processors' time that the hypervisor took.
    pub steal_share: f64,
    /// Datagrams that found a full buffer, on all sockets of the machine.
    pub receive_buffer_errors: u64,
    /// Datagrams that the server's sockets dropped.
    pub server_drops: u64,
    /// Datagrams that the generator's sockets dropped.
    pub client_drops: u64,
}

impl Snapshot {
    /// Reads everything. It takes some milliseconds, so it is taken outside the measured time, but for
    /// [`run_nanos_of`] of the server.
    pub fn take() -> Self {
        let mut snapshot = Self { drops: udp_drops(), ..Self::default() };
        for pid in numbers_in("/proc") {
            let threads = threads_of(pid).map(|(thread, nanos)| ((pid, thread), nanos));
            snapshot.run_nanos.extend(threads);
        }
        if let Some((steal, all)) = cpu_ticks(&read("/proc/stat")) {
            (snapshot.steal_ticks, snapshot.all_ticks) = (steal, all);
        }
        snapshot.receive_buffer_errors = receive_buffer_errors(&read("/proc/net/snmp"));
        snapshot
    }

    /// The difference to a later snapshot.
    pub fn until(&self, later: &Self, server: u32, server_port: u16, client_ports: &[u16]) -> Between {
        let drops = |port: u16| {
            let count = |snapshot: &Self| snapshot.drops.get(&port).copied().unwrap_or(0);
            count(later).saturating_sub(count(self))
        };
        let ticks = (later.all_ticks - self.all_ticks).max(1);
        Between {
            others_nanos: self.spent(later, |pid| pid != server && pid != std::process::id()),
            steal_share: later.steal_ticks.saturating_sub(self.steal_ticks) as f64 / ticks as f64,
            receive_buffer_errors: later.receive_buffer_errors.saturating_sub(self.receive_buffer_errors),
            server_drops: drops(server_port),
            client_drops: client_ports.iter().map(|&port| drops(port)).sum(),
        }
    }
}

impl Snapshot {
    /// Processor time of the processes that count.
    fn spent(&self, later: &Self, counts: impl Fn(u32) -> bool) -> u64 {
        let spent = |(thread, &after): (&(u32, u32), &u64)| {
            // A thread that is new has used all its time since; so has one that reuses a number.
            let before = self.run_nanos.get(thread).copied().filter(|&before| before <= after);
            after - before.unwrap_or(0)
        };
        later.run_nanos.iter().filter(|((pid, _), _)| counts(*pid)).map(spent).sum()
    }
}

fn read(path: &str) -> String {
    // What cannot be read is unknown, and counts as nothing.
    fs::read_to_string(path).unwrap_or_default()
}

fn numbers_in(directory: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The threads of a process, with the nanoseconds that each has run so far.
fn threads_of(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    numbers_in(&format!("/proc/{pid}/task")).into_iter().filter_map(move |thread| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        Some((thread, text.split_whitespace().next()?.parse().ok()?))
    })
}

/// Nanoseconds that all threads of a process have run so far.
pub fn run_nanos_of(pid: u32) -> u64 {
    threads_of(pid).map(|(_, nanos)| nanos).sum()
}

/// Nanoseconds that this thread has run so far.
pub fn run_nanos_of_this_thread() -> u64 {
    let text = read("/proc/thread-self/schedstat");
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Stolen and all ticks of all processors.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // The last two fields are parts of the first ones.
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    Some((*ticks.get(7)?, ticks.iter().sum()))
}

fn receive_buffer_errors(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let mut fields = names.split(' ').zip(numbers.split(' '));
    fields.find(|(name, _)| *name == "RcvbufErrors").and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// Drops of the IPv4 sockets, by local port.
fn udp_drops() -> HashMap<u16, u64> {
    let mut drops = HashMap::new();
    for line in read("/proc/net/udp").lines().skip(1) {
        if let Some((port, count)) = parse_udp_line(line) {
            *drops.entry(port).or_default() += count;
        }
    }
    drops
}

fn parse_udp_line(line: &str) -> Option<(u16, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let port = u16::from_str_radix(fields.get(1)?.split_once(':')?.1, 16).ok()?;
    Some((port, fields.get(12)?.parse().ok()?))
}

/// What stands in the record about the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// As the processor calls itself.
    pub processor: String,
    /// Processors in all.
    pub processors: usize,
    /// As `uname -r`.
    pub kernel: String,
    /// Large pages for ordinary memory: always, madvise or never.
    pub large_pages: String,
    /// The revision of the sources, when there is a repository.
    pub commit: String,
}

impl Machine {
    /// Looks.
    pub fn look() -> Self {
        let info = read("/proc/cpuinfo");
        let model = info.lines().find(|line| line.starts_with("model name"));
        let large = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = large.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Self {
            processor: model
                .and_then(|line| line.split_once(": "))
                .map_or("unknown", |(_, name)| name)
                .to_owned(),
            processors: info.lines().filter(|line| line.starts_with("processor")).count(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            large_pages: chosen.map_or("unknown", |(mode, _)| mode).to_owned(),
            commit: commit(),
        }
    }
}

fn commit() -> String {
    let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
    let output = std::process::Command::new("git").args(describe).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

/// How much of a process's advised memory lies on large pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LargePages {
    /// Bytes in mappings that asked for large pages.
    pub advised_bytes: u64,
    /// Of them, bytes on large pages.
    pub large_bytes: u64,
}

impl LargePages {
    /// Looks at a process.
    pub fn of(pid: u32) -> Self {
        Self::parse(&read(&format!("/proc/{pid}/smaps")))
    }

    fn parse(smaps: &str) -> Self {
        let (mut anonymous, mut large) = (0, 0);
        let mut sum = Self { advised_bytes: 0, large_bytes: 0 };
        let kilobytes = |rest: &str| rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10;
        for line in smaps.lines() {
            match line.split_once(':') {
                Some(("Anonymous", rest)) => anonymous = kilobytes(rest),
                Some(("AnonHugePages", rest)) => large = kilobytes(rest),
                // The flags end the lines of one mapping.
                Some(("VmFlags", rest)) if rest.split(' ').any(|flag| flag == "hg") => {
                    sum.advised_bytes += anonymous;
                    sum.large_bytes += large;
                }
                _ => {}
            }
        }
        sum
    }

    /// The share, if there is anything to share.
    pub fn share(self) -> Option<f64> {
        (0 < self.advised_bytes).then(|| self.large_bytes as f64 / self.advised_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1\n";
        assert_eq!(cpu_ticks(stat), Some((8, 36)));
        let snmp = "Udp: InDatagrams NoPorts RcvbufErrors\nUdp: 5 6 77\n";
        assert_eq!((receive_buffer_errors(snmp), receive_buffer_errors("")), (77, 0));
        let line = "  514: 0100007F:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 99";
        assert_eq!(parse_udp_line(line), Some((8080, 99)));
        assert_eq!(parse_udp_line("nonsense"), None);
    }

    #[test]
    fn large_pages_are_counted_where_they_were_asked_for() {
        let smaps = "1-2 rw-p\nAnonymous:  2048 kB\nAnonHugePages:  2048 kB\nVmFlags: rd wr hg\n\
                     2-3 rw-p\nAnonymous:  2048 kB\nAnonHugePages:  0 kB\nVmFlags: rd wr hg\n\
                     3-4 rw-p\nAnonymous:  4096 kB\nAnonHugePages:  4096 kB\nVmFlags: rd wr\n";
        let found = LargePages::parse(smaps);
        assert_eq!(found, LargePages { advised_bytes: 4 << 20, large_bytes: 2 << 20 });
        assert_eq!((found.share(), LargePages::parse("").share()), (Some(0.5), None));
    }

    #[test]
    fn own_time_grows_and_is_not_anothers() {
        let before = Snapshot::take();
        let started = run_nanos_of_this_thread();
        while run_nanos_of_this_thread() < started + 20_000_000 {}
        let after = Snapshot::take();
        assert!(20_000_000 <= before.spent(&after, |pid| pid == std::process::id()));
        assert_eq!(before.spent(&after, |pid| pid == u32::MAX), 0);
    }
}
