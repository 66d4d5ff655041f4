//! The judge: what a history must not contain.
//!
//! Some claims hold always (nothing is invented), some only while nothing is broken (every read is
//! fresh), some after everything has been mended (what was acknowledged and is not lost with all its
//! holders is there). Which of them a run has to keep is in [`Claims`]; what it may break is counted
//! instead. A write is *superseded* when it had certainly ended before another, acknowledged one began.
//! What the nodes themselves hold in the end is judged by [`super::census`].

use super::client::key_of;
use super::history::{Action, Cut, History, Op, OpId, Seen};
use super::host::Host;
use super::linear::{self, Effect, Span, Verdict};
use super::network::Place;
use super::world::BEGIN;
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A request that nobody answered takes effect at most this long after its last datagram: patience
/// of the nodes, and some time on the way.
const EFFECT_WITHIN: Duration = Duration::from_millis(6_500);
/// A node that comes back is in everybody's view again after this long.
const BACK_IN_VIEW: Duration = Duration::from_secs(5);
/// Steps of one search for an order.
const SEARCH_STEPS_MAX: usize = 100_000;
/// Requests shown of a key's history before and after one that matters.
const SHOWN_AROUND: usize = 8;

/// What a run has to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Every read is fresh, and what is not concurrent happens in one order: nothing is broken.
    pub fresh: bool,
    /// No write happens again after a newer one was acknowledged.
    pub once: bool,
    /// No read misses what was acknowledged longer than this before it, and is not lost.
    pub kept: Option<Duration>,
    /// No read that begins after this misses what is not lost: everything has been mended for some time.
    pub mended_from: Option<Instant>,
    /// In the end no read returns what a surviving write has superseded.
    pub durable: bool,
    /// What was written before all nodes were wiped is not read after that.
    pub wiped: bool,
    /// A node that was away for longer than this (so that it fences itself) serves nothing older than
    /// what was acknowledged before it came back.
    pub resume: Option<Duration>,
    /// Once a cut is over that lasted longer than this, no read misses what the larger side acknowledged
    /// meanwhile.
    pub rejoined: Option<Duration>,
    /// At the moment of its acknowledgement a write is on all replicas.
    pub replicated: bool,
}

/// A claim that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub claim: &'static str,
    /// What happened, with the key's history.
    pub story: String,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Claims that were not kept.
    pub violations: Vec<Violation>,
    /// Requests.
    pub ops: usize,
    /// Requests that nobody answered in time.
    pub unanswered: usize,
    /// Reads that were answered.
    pub reads: usize,
    /// Of reads that returned something superseded (or missed what was there): how long before them that was
    /// acknowledged.
    pub staleness: Vec<Duration>,
    /// Writes that happened again after a newer one, where that is not promised.
    pub repeated_effects: usize,
    /// Acknowledged writes that died with all their holders.
    pub lost_writes: usize,
    /// Reads that missed only such writes.
    pub reads_of_lost: usize,
    /// Keys whose history, concurrent reads included, has no order.
    pub not_linearizable: usize,
    /// Keys whose history is too entangled to tell.
    pub undecided: usize,
    /// Mutations that were answered in two ways, where that is allowed.
    pub contradictions: usize,
}

/// Judges a run. `probes_from` is where the final reads begin.
#[must_use]
pub fn judge(history: &History, hosts: &[Host], claims: Claims, probes_from: OpId) -> Findings {
    let mut judge = Judge {
        history,
        hosts,
        claims,
        probes_from,
        ends: vec![Instant::ZERO; history.ops.len()],
        rounds: wipe_rounds(history, hosts.len()),
        findings: Findings::default(),
    };
    judge.findings.ops = history.ops.len();
    let is_read = |op: &&Op| op.action == Action::Get && matches!(op.seen, Seen::Found(_) | Seen::Missing);
    judge.findings.reads = history.ops.iter().filter(is_read).count();
    judge.findings.unanswered = history.ops.iter().filter(|op| op.seen == Seen::Nothing).count();
    let mut of_key: Vec<Vec<OpId>> = vec![Vec::new(); history.keys.len()];
    let mut wipes = Vec::new();
    for (id, op) in history.ops.iter().enumerate() {
        match of_key.get_mut(op.key) {
            Some(ops) => ops.push(id),
            None => wipes.push(id),
        }
    }
    judge.findings.lost_writes = history.ops.iter().filter(|op| op.lost_at.is_some()).count();
    judge.note_ends(&wipes, &[]);
    for (key, ops) in of_key.iter().enumerate() {
        let replicas = judge.replicas(key);
        judge.note_ends(ops, &replicas);
        judge.judge_key(key, ops, &wipes);
    }
    judge.judge_answers();
    judge.findings
}

struct Judge<'a> {
    history: &'a History,
    hosts: &'a [Host],
    claims: Claims,
    probes_from: OpId,
    /// The moment after which a mutation has no effect any more.
    ends: Vec<Instant>,
    /// When each wipe-out of all nodes began and ended.
    rounds: Vec<(Instant, Instant)>,
    findings: Findings,
}

/// The mutations of a key, in the order in which they were made.
struct Changes {
    mutations: Vec<OpId>,
    /// What may have removed the value: when it began, and until when it or an earlier one had effect.
    removals: Vec<(Instant, Instant)>,
}

impl Judge<'_> {
    fn op(&self, id: OpId) -> &Op {
        &self.history.ops[id]
    }

    fn violate(&mut self, claim: &'static str, key: usize, focus: &[OpId], what: &str) {
        // One story a key and claim is enough to begin with.
        let name = name_of(self.history, key);
        let begin = format!("key {name}: ");
        if self.findings.violations.iter().any(|old| old.claim == claim && old.story.starts_with(&begin)) {
            return;
        }
        let story = format!("{begin}{what}\n{}", tell(self.history, self.hosts, key, focus));
        self.findings.violations.push(Violation { claim, story });
    }

    fn judge_key(&mut self, key: usize, ops: &[OpId], wipes: &[OpId]) {
        let changes = self.changes(ops, wipes);
        for &id in ops {
            let seen = self.op(id).seen.clone();
            match seen {
                Seen::Invented(what) => {
                    self.violate("nothing is invented", key, &[id], &format!("op {id} read {what}"))
                }
                Seen::Found(put) => self.judge_found(key, id, put, &changes),
                Seen::Missing if !self.op(id).is_mutation() => self.judge_missing(key, id, &changes),
                Seen::Done => self.judge_replicated(key, id),
                Seen::Missing | Seen::Nothing | Seen::Refused(_) => {}
            }
        }
        if self.claims.fresh && wipes.is_empty() {
            self.judge_order(key, ops);
        }
    }

    fn changes(&self, ops: &[OpId], wipes: &[OpId]) -> Changes {
        let mutations: Vec<OpId> = ops.iter().copied().filter(|id| self.op(*id).is_mutation()).collect();
        let removes = |id: &OpId| match (&self.op(*id).action, &self.op(*id).seen) {
            (Action::Wipe { .. }, _) => true,
            // It found nothing, unless somebody crashed in between: then nobody knows.
            (Action::Remove, Seen::Missing) => !self.claims.fresh,
            (Action::Remove, _) => true,
            (Action::Put { .. } | Action::Get, _) => false,
        };
        let mut removing: Vec<OpId> = mutations.iter().chain(wipes).copied().filter(removes).collect();
        removing.sort_unstable();
        let mut latest = Instant::ZERO;
        let removals = removing.into_iter().map(|id| {
            latest = latest.max(self.removal_end(id));
            (self.op(id).invoked, latest)
        });
        Changes { removals: removals.collect(), mutations }
    }

    fn note_ends(&mut self, ops: &[OpId], replicas: &[usize]) {
        for &id in ops.iter().filter(|id| self.history.ops[**id].is_mutation()) {
            self.ends[id] = self.find_end(id, replicas);
        }
    }

    /// The moment after which a removal has no effect any more. Where nodes are out of each other's reach a
    /// repeat of it may happen again.
    fn removal_end(&self, id: OpId) -> Instant {
        let op = self.op(id);
        let is_repeated = op.returned.is_some_and(|returned| returned < op.last_sent);
        if is_repeated && !self.claims.once { op.last_sent + EFFECT_WITHIN } else { self.end_of(id) }
    }

    fn end_of(&self, id: OpId) -> Instant {
        self.ends[id]
    }

    /// The moment after which a mutation has no effect any more. When all replicas that knew that it is
    /// done have died, a repeat of it may be taken for new.
    fn find_end(&self, id: OpId, replicas: &[usize]) -> Instant {
        let op = self.op(id);
        let last_effect = op.last_sent + EFFECT_WITHIN;
        match op.seen {
            Seen::Done | Seen::Missing => {
                let returned = op.returned.unwrap_or(Instant::FAR);
                if self.is_forgotten(op, replicas) { returned.max(last_effect) } else { returned }
            }
            Seen::Nothing | Seen::Refused(_) | Seen::Found(_) | Seen::Invented(_) => last_effect,
        }
    }

    fn is_forgotten(&self, op: &Op, replicas: &[usize]) -> bool {
        let somebody_died = self.hosts.iter().any(|host| 1 < host.births || host.is_gone);
        let knows =
            |(node, births): &(usize, u32)| replicas.contains(node) && self.hosts[*node].births == *births;
        somebody_died && !op.holders.iter().any(knows)
    }

    /// The acknowledged mutations that supersede a PUT and were acknowledged before `by`.
    fn superseding(&self, put: OpId, mutations: &[OpId], by: Instant) -> Vec<OpId> {
        let end = self.end_of(put);
        let first = mutations.partition_point(|id| self.op(*id).invoked <= end);
        let in_time = mutations[first..].iter().copied().take_while(|id| self.op(*id).invoked < by);
        let supersedes = |id: &OpId| {
            let op = self.op(*id);
            op.is_acknowledged() && op.returned.is_some_and(|returned| returned < by)
        };
        in_time.filter(supersedes).collect()
    }

    fn judge_found(&mut self, key: usize, read: OpId, put: OpId, changes: &Changes) {
        if self.op(read).returned < Some(self.op(put).invoked) {
            return self.violate(
                "nothing is invented",
                key,
                &[read, put],
                &format!("op {read} read what op {put} wrote later"),
            );
        }
        self.judge_wiped(key, read, put);
        let newer = self.superseding(put, &changes.mutations, self.op(read).invoked);
        if newer.is_empty() {
            return;
        }
        let version = self.op(read).version;
        let is_younger = |id: &OpId| self.op(*id).version.is_some_and(|newer| Some(newer) < version);
        if let Some(&first) = newer.iter().find(|id| is_younger(id)) {
            if self.claims.once && !self.were_all_away(key, self.op(first).invoked, read) {
                let what = format!("op {read} read what op {put} wrote, younger than op {first} by version");
                return self.violate("a write happens once", key, &[put, first, read], &what);
            }
            self.findings.repeated_effects += 1;
        }
        if self.may_have_happened_again(put, read) {
            self.findings.repeated_effects += 1;
            return;
        }
        self.judge_stale(key, read, &newer);
    }

    /// Whether a read may have found what a repeat wrote again, and so shortly that its version was not seen.
    fn may_have_happened_again(&self, put: OpId, read: OpId) -> bool {
        let (put, read) = (self.op(put), self.op(read));
        let was_repeated = put.returned.is_some_and(|returned| returned < put.last_sent);
        let in_time = read.invoked < put.last_sent + EFFECT_WITHIN;
        !self.claims.once && read.version.is_none() && was_repeated && in_time
    }

    /// Whether all replicas of a key were paused or without a core at once before a read ended: who stands in
    /// for all of them cannot know what they know.
    fn were_all_away(&self, key: usize, from: Instant, read: OpId) -> bool {
        let absences = &self.history.absences;
        let until = self.op(read).returned.unwrap_or(Instant::FAR);
        let is_away = |node: usize, at: Instant| {
            absences.iter().any(|&(other, since, back)| other == node && since <= at && at < back)
                || self.history.starved.iter().any(|&(other, since)| other == node && since <= at)
        };
        let replicas = self.replicas(key);
        let moments = absences.iter().map(|(_, since, _)| *since);
        moments.filter(|at| *at < until).any(|at| replicas.iter().all(|node| is_away(*node, at.max(from))))
    }

    /// What was written before a wipe-out of all nodes is not there after it.
    fn judge_wiped(&mut self, key: usize, read: OpId, put: OpId) {
        let (written, invoked) = (self.end_of(put), self.op(read).invoked);
        let is_between = |(begun, ended): &(Instant, Instant)| written < *begun && *ended < invoked;
        if self.claims.wiped && self.rounds.iter().any(is_between) {
            let what = format!("op {read} read what op {put} wrote before all nodes were wiped");
            self.violate("what all were told to forget stays forgotten", key, &[put, read], &what);
        }
    }

    fn judge_missing(&mut self, key: usize, read: OpId, changes: &Changes) {
        let (invoked, returned) = (self.op(read).invoked, self.op(read).returned.unwrap_or(Instant::FAR));
        let removals = changes.removals.partition_point(|(begun, _)| *begun < returned);
        let removed_until = changes.removals[..removals].last().map_or(Instant::ZERO, |(_, until)| *until);
        let mutations = &changes.mutations;
        let first = mutations.partition_point(|id| self.op(*id).invoked < removed_until);
        let in_time = mutations[first..].iter().take_while(|id| self.op(**id).invoked < invoked);
        let is_missed = |put: &OpId| {
            let op = self.op(*put);
            matches!(op.action, Action::Put { .. })
                && op.is_acknowledged()
                && op.returned.is_some_and(|acknowledged| acknowledged < invoked)
        };
        let missed: Vec<OpId> = in_time.copied().filter(is_missed).collect();
        if !missed.is_empty() {
            self.judge_stale(key, read, &missed);
        }
    }

    /// A read that should have seen one of `newer` (or something newer still), unless all are lost.
    fn judge_stale(&mut self, key: usize, read: OpId, newer: &[OpId]) {
        let returned = self.op(read).returned.unwrap_or(Instant::FAR);
        let is_there = |id: &OpId| !self.op(*id).is_lost_by(returned);
        let there = newer.iter().copied().filter(is_there);
        let Some(first) = there.min_by_key(|id| self.op(*id).returned) else {
            self.findings.reads_of_lost += 1;
            return;
        };
        let acknowledged = self.op(first).returned.unwrap_or(Instant::ZERO);
        let what = format!("op {read} did not see op {first}");
        if self.probes_from <= read && self.claims.durable {
            return self.violate("what is acknowledged stays", key, &[first, read], &what);
        }
        let age = self.op(read).invoked.since(acknowledged);
        self.findings.staleness.push(age);
        let is_mended = self.claims.mended_from.is_some_and(|from| from <= self.op(read).invoked);
        // Repeats that were taken for new may have come later; what they did is what is to be seen.
        let newest = self.op(first).version;
        let is_older = match self.op(read).seen {
            Seen::Missing => !self.history.is_removed_after(key, newest, returned),
            _ => self.op(read).version < newest,
        };
        if self.claims.fresh {
            self.violate("every read is fresh", key, &[first, read], &what);
        } else if is_mended && is_older {
            self.violate("mended, no read misses what is not lost", key, &[first, read], &what);
        } else if is_older
            && !self.op(read).is_excused
            && self.claims.kept.is_some_and(|within| within <= age)
        {
            self.violate("no read misses what is not lost", key, &[first, read], &what);
        } else if is_older && self.is_stale_after_cut(read, first) {
            self.violate("who was cut off serves nothing from before", key, &[first, read], &what);
        } else if self.is_stale_after_resume(read, acknowledged) {
            self.violate("who comes back serves nothing stale", key, &[first, read], &what);
        }
    }

    /// Whether the read began after a cut, and misses what was acknowledged on the larger side during it.
    fn is_stale_after_cut(&self, read: OpId, newer: OpId) -> bool {
        let Some(noticed_after) = self.claims.rejoined else { return false };
        let (asked, begun) = (self.op(read).invoked, self.op(newer).invoked);
        let Some(by) = self.op(newer).answered_by else { return false };
        let cuts = &self.history.cuts;
        let is_cut = |at: Instant| cuts.iter().any(|cut| cut.since <= at && at < cut.until);
        let returned = self.op(read).returned.unwrap_or(Instant::FAR);
        let covers = |cut: &Cut| {
            let is_long = noticed_after < cut.until.since(cut.since);
            let was_written = cut.since <= begun && begun < cut.until && !cut.few.contains(&by);
            is_long && was_written && cut.until <= asked && !is_cut(asked) && !is_cut(returned)
        };
        cuts.iter().any(covers)
    }

    /// Whether the answer came from a node that had been paused meanwhile, and all others were there to
    /// tell it what it missed: who is away cannot hand over hints.
    fn is_stale_after_resume(&self, read: OpId, acknowledged: Instant) -> bool {
        let op = self.op(read);
        let (Some(node), Some(returned)) = (op.answered_by, op.returned) else { return false };
        let Some(fence_after) = self.claims.resume else { return false };
        let absences = &self.history.absences;
        let is_away = |other: usize, from: Instant, until: Instant| {
            absences.iter().any(|&(paused, since, back)| paused == other && since < until && from < back)
        };
        let came_back = |&(paused, since, back): &(usize, Instant, Instant)| {
            let others_are_there = (0..self.hosts.len())
                .all(|other| other == node || !is_away(other, back - BACK_IN_VIEW, returned));
            let is_told = paused == node && acknowledged < back && back <= returned;
            is_told && fence_after < back.since(since) && others_are_there
        };
        absences.iter().any(came_back)
    }

    fn replicas(&self, key: usize) -> Vec<usize> {
        let Some(key) = self.history.keys.get(key) else { return Vec::new() };
        let lists = self.hosts.iter().map(|host| host.preference_list(key));
        let Some((list, replicas)) = lists.into_iter().find(|(list, _)| !list.is_empty()) else {
            return Vec::new();
        };
        let nodes = list[..replicas].iter().filter_map(|address| match Place::of(*address) {
            Some(Place::Node(node)) => Some(node),
            Some(Place::Client(_)) | None => None,
        });
        nodes.collect()
    }

    fn judge_replicated(&mut self, key: usize, id: OpId) {
        let op = self.op(id);
        if !self.claims.replicated || op.version.is_none() {
            return;
        }
        let replicas = self.replicas(key);
        let holds = |node: &usize| op.holders.iter().any(|(holder, _)| holder == node);
        let missing: Vec<usize> = replicas.into_iter().filter(|node| !holds(node)).collect();
        if !missing.is_empty() {
            let what = format!("op {id} was acknowledged, and nodes {missing:?} did not have it");
            self.violate("an acknowledged write is on all replicas", key, &[id], &what);
        }
    }

    /// Reads that overlap no mutation must fit into one order with the mutations. With the
    /// overlapping ones that is not promised: the first reply wins, so one read may see a write that
    /// is under way and the next may not.
    fn judge_order(&mut self, key: usize, ops: &[OpId]) {
        let mutations: Vec<OpId> = ops.iter().copied().filter(|id| self.op(*id).is_mutation()).collect();
        let overlaps = |read: OpId| {
            let read = self.op(read);
            let returned = read.returned.unwrap_or(Instant::FAR);
            mutations.iter().any(|id| self.op(*id).invoked < returned && read.invoked < self.end_of(*id))
        };
        let quiet: Vec<OpId> =
            ops.iter().copied().filter(|id| self.op(*id).is_mutation() || !overlaps(*id)).collect();
        match linear::check(&self.spans(&quiet), SEARCH_STEPS_MAX) {
            Verdict::Linearizable => {}
            Verdict::Unknown => self.findings.undecided += 1,
            Verdict::Not(count) => {
                let what = format!("only {count} of {} requests fit into one order", quiet.len());
                self.violate("requests happen in one order", key, &[], &what);
            }
        }
        match linear::check(&self.spans(ops), SEARCH_STEPS_MAX) {
            Verdict::Linearizable => {}
            Verdict::Unknown => self.findings.undecided += 1,
            Verdict::Not(_) => self.findings.not_linearizable += 1,
        }
    }

    fn spans(&self, ops: &[OpId]) -> Vec<Span> {
        let span = |id: &OpId| {
            let op = self.op(*id);
            let effect = match (&op.action, &op.seen) {
                (Action::Put { .. }, Seen::Done | Seen::Nothing) => Effect::Write(*id as u32),
                (Action::Remove, Seen::Done) => Effect::Remove,
                (Action::Remove, Seen::Nothing) => Effect::MayRemove,
                (Action::Remove | Action::Get, Seen::Missing) => Effect::SawNone,
                (Action::Get, Seen::Found(put)) => Effect::Saw(*put as u32),
                _ => return None,
            };
            let returned = op.ended().unwrap_or(Instant::FAR);
            Some(Span { invoked: op.invoked, returned, effect })
        };
        ops.iter().filter_map(span).collect()
    }

    fn judge_answers(&mut self) {
        for line in &self.history.contradictions {
            if self.claims.fresh {
                self.findings
                    .violations
                    .push(Violation { claim: "repeats are answered alike", story: line.clone() });
            } else {
                self.findings.contradictions += 1;
            }
        }
    }
}

/// The wipe-outs that reached all nodes: from when until when.
fn wipe_rounds(history: &History, nodes: usize) -> Vec<(Instant, Instant)> {
    let mut rounds: BTreeMap<u64, (usize, Instant, Instant)> = BTreeMap::new();
    for op in history.ops.iter().filter(|op| op.is_acknowledged()) {
        if let (Action::Wipe { round }, Some(returned)) = (&op.action, op.returned) {
            let (count, begun, ended) = rounds.entry(*round).or_insert((0, op.invoked, returned));
            (*count, *begun, *ended) = (*count + 1, (*begun).min(op.invoked), (*ended).max(returned));
        }
    }
    let complete = rounds.into_values().filter(|(count, ..)| *count == nodes);
    complete.map(|(_, begun, ended)| (begun, ended)).collect()
}

/// A key as text.
#[must_use]
pub fn name_of(history: &History, key: usize) -> String {
    history.keys.get(key).map_or_else(
        || "-".to_owned(),
        |key| String::from_utf8_lossy(key.as_bytes()).trim_end_matches('\0').to_owned(),
    )
}

/// The history of a key around some of its requests (or its end), and what the nodes hold now.
#[must_use]
pub fn tell(history: &History, hosts: &[Host], key: usize, focus: &[OpId]) -> String {
    let of_key = |id: &OpId| history.ops[*id].key == key || history.ops[*id].key == usize::MAX;
    let ops: Vec<OpId> = (0..history.ops.len()).filter(of_key).collect();
    let places = focus.iter().filter_map(|id| ops.iter().position(|op| op == id));
    let places: Vec<usize> = places.chain([ops.len()]).collect();
    let is_shown = |place: usize| places.iter().any(|near| place.abs_diff(*near) <= SHOWN_AROUND);
    let mut story = String::new();
    let mut skipped = 0;
    for (place, id) in ops.iter().enumerate() {
        if !is_shown(place) {
            skipped += 1;
            continue;
        }
        if 0 < skipped {
            story.push_str(&format!("  ({skipped} more)\n"));
            skipped = 0;
        }
        story.push_str(&line_of(history, *id, focus.contains(id)));
    }
    for (node, host) in hosts.iter().enumerate() {
        let Some((version, value)) = host.record(&key_of(&name_of(history, key))) else { continue };
        let value = value.map_or("removed".to_owned(), |value| begin_of(&value));
        story.push_str(&format!("  n{node} (start {}) holds {value} as {version:?}\n", host.births));
    }
    story
}

fn line_of(history: &History, id: OpId, matters: bool) -> String {
    let op = &history.ops[id];
    let seconds = |at: Instant| at.since(BEGIN).as_secs_f64();
    let mark = if matters { '*' } else { ' ' };
    let mut line = format!("{mark} op {id} +{:.6}s", seconds(op.invoked));
    let action = match &op.action {
        Action::Put { value, .. } => format!("put {}", begin_of(value)),
        Action::Get => "get".to_owned(),
        Action::Remove => "remove".to_owned(),
        Action::Wipe { round } => format!("wipe-out {round:x}"),
    };
    let until = op.returned.map_or("open".to_owned(), |at| format!("+{:.6}s", seconds(at)));
    let seen = match &op.seen {
        Seen::Found(put) => match &history.ops[*put].action {
            Action::Put { value, .. } => format!("{} (op {put})", begin_of(value)),
            Action::Get | Action::Remove | Action::Wipe { .. } => "?".to_owned(),
        },
        other => format!("{other:?}"),
    };
    write!(line, " .. {until} c{} {action} via n{} -> {seen}", op.client, op.asked)
        .expect("writing to a string cannot fail");
    if let Some(at) = op.lost_at {
        line.push_str(&format!(" (LOST at +{:.6}s)", seconds(at)));
    }
    if let Some(node) = op.answered_by {
        line.push_str(&format!(" by n{node}"));
    }
    if let Some(version) = op.version {
        let holders: Vec<String> = op.holders.iter().map(|(node, _)| format!("n{node}")).collect();
        line.push_str(&format!(", {version:?} on {}", holders.join(" ")));
    }
    line + "\n"
}

fn begin_of(value: &[u8]) -> String {
    // A value begins with its number and ends its second word there.
    let end =
        value.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(1).map_or(value.len(), |(at, _)| at);
    format!("\"{}\"", value[..end.min(24)].escape_ascii())
}
