//! What an agent finds out about its machine: from `/proc` and two system calls.

use std::fs;
use std::path::Path;
use std::thread;

use super::record::Facts;

/// The facts of this machine; the disk is that of the directory.
pub fn gather(directory: &Path) -> Facts {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let name = rustix::system::uname();
    let words = [name.sysname(), name.release()].map(|word| word.to_string_lossy().into_owned());
    Facts {
        cores: thread::available_parallelism().map_or(1, usize::from),
        load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| first_number(&text)),
        memory_free_bytes: kilobytes(&memory, "MemAvailable:"),
        memory_bytes: kilobytes(&memory, "MemTotal:"),
        disk_free_bytes: disk_free_bytes(directory),
        kernel: words.join(" "),
        rmem_max_bytes: fs::read_to_string("/proc/sys/net/core/rmem_max")
            .ok()
            .and_then(|text| first_number(&text)),
    }
}

fn first_number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.split_whitespace().next()?.parse().ok()
}

/// A line of `/proc/meminfo`, in bytes.
fn kilobytes(memory: &str, name: &str) -> Option<u64> {
    let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
    Some(first_number::<u64>(line)? * 1_024)
}

fn disk_free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       16 kB\nMemAvailable:    8 kB\n";
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(8_192));
        assert_eq!(kilobytes(text, "SwapFree:"), None);
        assert_eq!(kilobytes("MemTotal: x", "MemTotal:"), None);
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = gather(Path::new("/"));
        assert!(1 <= facts.cores);
        assert!(facts.memory_free_bytes <= facts.memory_bytes);
        assert!(facts.kernel.contains(' '), "{}", facts.kernel);
    }
}
