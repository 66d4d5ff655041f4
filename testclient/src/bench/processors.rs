//! Which processor does what: servers and the generator are kept apart, or together, by affinity.
//!
//! A process inherits the affinity of the thread that starts it; one that runs is moved thread by thread.
//! Deliberately not here: NUMA, frequency and interrupts, which a virtual machine does not show.

use std::fs;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

/// Who may run where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Processors {
    /// The processors of the measured server.
    pub server: Vec<usize>,
    /// The processors of the generator.
    pub client: Vec<usize>,
    /// All that this program was given.
    pub all: Vec<usize>,
}

/// How a measurement uses the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// Server and generator each have their own.
    Apart,
    /// Both share the generator's: no processor ever halts, and only software is in the way.
    Together,
    /// All are free for both.
    Free,
}

impl Processors {
    /// What was asked for, or the first two that do not share a core; with a single one, everything is on it.
    ///
    /// # Errors
    /// One sentence, when a processor is asked for that this program may not use.
    pub fn choose(server: &[usize], client: &[usize]) -> Result<Self, String> {
        let all = allowed()?;
        if let Some(missing) = server.iter().chain(client).find(|cpu| !all.contains(cpu)) {
            return Err(format!("processor {missing} is not among those of this program: {all:?}"));
        }
        let first = all[0];
        let apart = all.iter().find(|&&cpu| cpu != first && !siblings(first).contains(&cpu));
        let other = apart.or(all.get(1)).copied().unwrap_or(first);
        let or = |asked: &[usize], cpu| if asked.is_empty() { vec![cpu] } else { asked.to_vec() };
        Ok(Self { server: or(server, other), client: or(client, first), all })
    }

    /// Whether server and generator have processors of their own.
    pub fn are_apart(&self) -> bool {
        !self.server.iter().any(|cpu| self.client.contains(cpu))
    }

    /// Those that the server uses.
    pub fn of_server(&self, pinning: Pinning) -> &[usize] {
        match pinning {
            Pinning::Apart => &self.server,
            Pinning::Together => &self.client[..1],
            Pinning::Free => &self.all,
        }
    }

    /// Those that the generator uses.
    pub fn of_client(&self, pinning: Pinning) -> &[usize] {
        match pinning {
            Pinning::Apart => &self.client,
            Pinning::Together => &self.client[..1],
            Pinning::Free => &self.all,
        }
    }
}

fn allowed() -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(|error| format!("processors: {error}"))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// The processors that are threads of the same core, as far as the system tells.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(fs::read_to_string(path).unwrap_or_default().trim())
}

/// Reads the kernel's way to write a set: `0-2,7`.
fn parse_list(text: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?)
    };
    text.split(',').filter_map(part).flatten().collect()
}

/// Puts this thread on these processors.
///
/// # Errors
/// One sentence, as the system says.
pub fn pin_this_thread(cpus: &[usize]) -> Result<(), String> {
    pin(Pid::from_raw(0), cpus)
}

/// Puts all threads of a process on these processors.
///
/// # Errors
/// One sentence, as the system says.
pub fn pin_process(pid: u32, cpus: &[usize]) -> Result<(), String> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.map_err(|error| format!("process {pid}: {error}"))?;
    for entry in entries.flatten() {
        if let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            pin(Pid::from_raw(thread), cpus)?;
        }
    }
    Ok(())
}

fn pin(thread: Pid, cpus: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    let all = cpus.iter().try_for_each(|&cpu| set.set(cpu));
    all.and_then(|()| sched_setaffinity(thread, &set))
        .map_err(|error| format!("processors {cpus:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_the_kernel_writes_them() {
        for (text, expected) in [("0", vec![0]), ("0-2,7", vec![0, 1, 2, 7]), ("", vec![]), ("x", vec![])] {
            assert_eq!(parse_list(text), expected, "{text}");
        }
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused_and_a_choice_is_always_found() {
        let chosen = Processors::choose(&[], &[]).unwrap();
        assert_eq!(chosen.are_apart(), 1 < chosen.all.len());
        assert_eq!(chosen.of_server(Pinning::Together), chosen.of_client(Pinning::Together));
        let error = Processors::choose(&[100_000], &[]).unwrap_err();
        assert!(error.contains("100000"), "{error}");
    }
}
