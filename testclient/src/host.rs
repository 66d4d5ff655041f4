//! The machine that makes load, as it stands in results.

use std::fs;
use std::thread;

use crate::machine;
use crate::result::Machine;

/// This machine, before a run.
pub fn this_machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let os = read("/proc/sys/kernel/ostype");
    Machine {
        host: read("/proc/sys/kernel/hostname"),
        processor: model
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned()),
        processors: thread::available_parallelism().map_or(1, usize::from),
        system: match os.is_empty() {
            true => std::env::consts::OS.to_owned(),
            false => format!("{os} {}", read("/proc/sys/kernel/osrelease")),
        },
        load_average_before: machine::load_average(),
        load_average_after: None,
        steal_share: None,
    }
}

/// Processor time of the whole machine, in ticks: all, and what the hypervisor gave to others.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    all: u64,
    stolen: u64,
}

/// Now; `None` where the kernel does not tell.
pub fn ticks() -> Option<Ticks> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?.strip_prefix("cpu")?;
    // user nice system idle iowait irq softirq steal; what guests used is in user already.
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    Some(Ticks { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
}

/// What became of the machine over a run.
pub fn after(machine: &mut Machine, before: Option<Ticks>) {
    machine.load_average_after = machine::load_average();
    machine.steal_share = before.zip(ticks()).and_then(|(before, after)| {
        let all = after.all.checked_sub(before.all).filter(|&all| 0 < all)?;
        Some(after.stolen.saturating_sub(before.stolen) as f64 / all as f64)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described() {
        let mut machine = this_machine();
        assert!(!machine.host.is_empty() && !machine.processor.is_empty() && 0 < machine.processors);
        after(&mut machine, ticks());
        assert!(machine.steal_share.is_none_or(|share| (0.0..=1.0).contains(&share)));
    }
}
