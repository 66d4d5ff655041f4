//! A failed run as the beginning of a scenario file: its cluster, what was done to it, and what was asked
//! about one key, in the commands of [`super::script`].
//!
//! It is not the same run: other datagrams are delayed, and the other keys are gone. It is a start for
//! somebody who wants to keep the story without the seed.

use super::checker::name_of;
use super::history::{Action, Op};
use super::world::{BEGIN, World};
use crate::config::Config;
use crate::time::{Duration, Instant};

/// What 'nodes' waits before the first command.
const SETTLE: Duration = Duration::from_secs(2);

/// The script of a run, with the requests about the key of this name.
#[must_use]
pub fn script(world: &World, first: usize, config: &Config, key: &str) -> String {
    let spares = world.hosts.len() - first;
    let (forget, keep) = (config.forget_after_ms, config.hint_keep_s);
    let mut script = format!("nodes {first} spares={spares} forget-after-ms={forget} hint-keep-s={keep}\n");
    let of_key =
        |op: &&Op| name_of(&world.history, op.key) == key || matches!(op.action, Action::Wipe { .. });
    let asked = world.history.ops.iter().filter(of_key).map(|op| (op.invoked, request(op, key)));
    let mut lines: Vec<(Instant, String)> = world.journal.iter().cloned().chain(asked).collect();
    lines.sort_by_key(|(at, _)| *at);
    let mut now = BEGIN + SETTLE;
    for (at, line) in lines {
        let wait = at.since(now).as_millis();
        // The first starts are part of 'nodes'.
        if at < now && line.starts_with("start") {
            continue;
        }
        if 0 < wait {
            script.push_str(&format!("run {wait}ms\n"));
            now = now + Duration::from_millis(wait as u64);
        }
        script.push_str(&line);
        script.push('\n');
    }
    script
}

fn request(op: &Op, key: &str) -> String {
    let via = op.asked;
    match &op.action {
        Action::Put { value, .. } => {
            let words = value.split(|byte| *byte == b' ').take(2).map(String::from_utf8_lossy);
            format!("send put {key}={} via n{via}", words.collect::<Vec<_>>().join("-"))
        }
        Action::Get => format!("send get {key} via n{via}"),
        Action::Remove => format!("send remove {key} via n{via}"),
        Action::Wipe { .. } => format!("send wipe n{via}"),
    }
}
