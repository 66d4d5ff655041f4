//! Anti-entropy: owners of a partition compare what they hold, and copy what they lack.
//!
//! For every partition that this node owns (or merely holds) and every other owner of it there is an
//! [`Item`]. Now and then, and at once while something is filling, the roots of many partitions go to
//! a partner in one datagram ([`Message::Compare`]); equal roots cost one answer. Where they differ
//! both sides pull from each other ([`super::transfer`]). From this one mechanism follow:
//!
//! - *filling*: a partition that became this node's own, by a start, a gap in time or a new layout, is
//!   served only after it was compared with every other owner that can be reached, old and new ones;
//! - *repair* of what was missed, lost or never delivered;
//! - *handing over*: what this node holds and does not own goes once all owners say that they cover it;
//! - *agreement*: the time up to which all owners are known to have held the same, tombstones included,
//!   after which old tombstones may go ([`crate::storage::Engine::agree`]).
//!
//! What was compared before [`State::since`] does not count for filling: until every living member
//! uses the same layout, somebody may still write past this node.

mod asking;
mod dropping;
mod filling;

use super::Replica;
use super::transfer::{Pull, Step};
use crate::cluster::fence::Fence;
use crate::cluster::link::Link;
use crate::cluster::{ClusterView, MemberState};
use crate::ids::{Generation, MemberId};
use crate::metrics::Metric;
use crate::outbox::Outbox;
use crate::peer::{Message, Roots};
use crate::time::{Duration, Instant};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// How often a partition is compared with each other owner when all is well.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// How soon a question without an answer is asked again: while filling, and otherwise.
const ASK_AGAIN_SOON: Duration = Duration::from_millis(250);
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long a partner that failed a pull is left alone.
const PULL_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often strays and agreements are looked at.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);
/// A member that was called down and was heard since takes part for this long without being heard again;
/// by then gossip knows better.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// What a call works with.
#[derive(Debug)]
pub struct Scene<'a> {
    /// Now.
    pub now: Instant,
    /// The cluster.
    pub view: &'a ClusterView,
    /// This node's data.
    pub replica: &'a Replica,
    /// What of it may be served.
    pub fence: &'a Fence,
    /// How frames are sent.
    pub link: &'a Link,
    /// A member that has been silent for longer is not waited for.
    pub suspect_after: Duration,
    /// What is to be sent and counted.
    pub outbox: &'a mut Outbox,
}

/// What this node can say of its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Everything that it owns is filled.
    pub full: bool,
    /// Comparisons count: every living member uses this layout, or was waited for long enough.
    pub counting: bool,
    /// Every living member uses this layout and is full.
    pub everyone_full: bool,
}

/// How much is left to do, for people and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Own partitions that are filling.
    pub filling: usize,
    /// Partitions held that this node does not own.
    pub strays: usize,
    /// Pulls in progress.
    pub pulls: usize,
}

/// Comparisons of this node with all others.
#[derive(Debug)]
pub struct AntiEntropy {
    stale_after: Duration,
    /// Nothing else is locked while it is held but the engine and the fence.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    partners: BTreeMap<MemberId, Partner>,
    /// Partitions that this node owns or owned until the layout is settled.
    owned: BTreeSet<u16>,
    /// Those of them that everybody writes here; the others are never served.
    sure: BTreeSet<u16>,
    strays: BTreeSet<u16>,
    /// What the comparisons are based on: layout, whether it is settled, count of gaps.
    basis: Option<(u64, bool, u64)>,
    basis_at: Instant,
    /// From when on a comparison counts for filling.
    since: Option<Instant>,
    housekept_at: Instant,
    /// When the owners of strays were asked for the last time whether they hold what may go then.
    dropping_since: Instant,
    next_ticket: u64,
}

/// What was compared with one member.
#[derive(Debug, Default)]
struct Partner {
    /// Which start of it all this is about.
    generation: Generation,
    items: BTreeMap<u16, Item>,
    /// The earliest `due` of the items.
    due: Instant,
    wanted: BTreeSet<u16>,
    running: Option<Running>,
    not_before: Instant,
}

#[derive(Debug)]
struct Running {
    ticket: u64,
    generation: Generation,
    begun: Instant,
    pull: Pull,
}

/// One partition, compared with one member.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    due: Instant,
    asked_at: Instant,
    asked_root: u64,
    /// Everything that it held then is here.
    verified_at: Instant,
    /// Both held the same then.
    equal_at: Instant,
    /// Its last wipe-out.
    wiped_at: u64,
    /// It holds everything that was here when the root was this, and when it said so.
    covered: Option<(u64, Instant)>,
    /// With these roots (here, there) there was nothing to copy.
    nothing_new: Option<(u64, u64)>,
}

impl AntiEntropy {
    /// Nothing compared yet. Frames older than `stale_after` are refused everywhere.
    #[must_use]
    pub fn new(stale_after: Duration) -> Self {
        Self { stale_after, state: Mutex::default() }
    }

    /// A view is about to be in force: what this node gains by it is filling from now on. Call before
    /// anyone else sees the view.
    pub fn adopt(&self, view: &ClusterView, fence: &Fence) {
        let mut state = self.state.lock();
        let (round, me) = (fence.round().0, view.me());
        let before = std::mem::take(&mut state.sure);
        let owned = (0..view.partitions()).filter(|partition| view.is_owner(*partition, me));
        state.owned = owned.collect();
        let sure = state.owned.iter().copied().filter(|partition| view.is_sure_owner(*partition, me));
        state.sure = sure.collect();
        for partition in 0..view.partitions() {
            if !state.owned.contains(&partition) {
                fence.end_filling(round, partition);
            } else if !(before.contains(&partition) && state.sure.contains(&partition)) {
                fence.begin_filling(partition);
            }
        }
        // The next tick makes the items anew.
        state.basis = None;
    }

    /// Works off what is due.
    pub fn tick(&self, scene: &mut Scene<'_>) -> Verdict {
        let mut state = self.state.lock();
        let state = &mut *state;
        for (member, partner) in &mut state.partners {
            if let Some(index) = scene.view.index_of(*member) {
                partner.follow(scene.view.member(index).peer.generation());
            }
        }
        state.follow_basis(scene);
        if HOUSEKEEPING_EVERY <= scene.now.since(state.housekept_at) {
            state.housekept_at = scene.now;
            state.find_strays(scene);
            state.agree(scene);
        }
        state.drop_strays(scene);
        let confirmed = state.follow_confirmations(scene, self.stale_after);
        state.end_fillings(scene);
        state.send_compares(scene);
        state.begin_pulls(scene);
        let full = scene.fence.is_active() && state.filling(scene).next().is_none();
        let everyone_full = full && confirmed && living(scene).all(|member| standing_of(scene, member).full);
        Verdict { full, counting: state.since.is_some(), everyone_full }
    }

    /// Another member tells what it holds, and asks what is held here.
    pub fn on_compare(
        &self,
        scene: &mut Scene<'_>,
        from: u16,
        asked_at: u64,
        wiped_at: u64,
        roots: Roots<'_>,
    ) {
        let mut state = self.state.lock();
        let member = scene.view.member(from);
        let partner = state.partners.entry(member.id).or_default();
        partner.follow(member.peer.generation());
        let (mut answer, mut covered) = (Vec::new(), Vec::new());
        for (partition, theirs) in roots.iter().filter(|(partition, _)| *partition < scene.view.partitions())
        {
            let mine = scene.replica.digest(partition).root();
            Roots::push(&mut answer, partition, mine);
            let owns = scene.view.is_owner(partition, scene.view.me());
            if let Some(item) = partner.items.get_mut(&partition) {
                item.wiped_at = wiped_at;
                // Only a question of this node's own tells when the other held this: one of the other's may
                // have been on its way. Agreement has a margin for that, filling has none.
                if mine == theirs {
                    item.equal_at = scene.now;
                }
                if item.nothing_new == Some((mine, theirs)) {
                    Roots::push(&mut covered, partition, theirs);
                    continue;
                }
            }
            if owns && theirs != 0 && mine != theirs {
                partner.wanted.insert(partition);
            }
        }
        drop(state);
        let roots = Roots::over(&answer);
        let wiped_at = scene.replica.wiped_at();
        scene.send(from, &Message::Compared { asked_at, wiped_at, roots });
        if !covered.is_empty() {
            scene.send(from, &Message::Covered { roots: Roots::over(&covered) });
        }
    }

    /// The answer to a comparison.
    pub fn on_compared(
        &self,
        scene: &mut Scene<'_>,
        from: u16,
        asked_at: u64,
        wiped_at: u64,
        roots: Roots<'_>,
    ) {
        let mut state = self.state.lock();
        let State { partners, owned, since, .. } = &mut *state;
        let Some(partner) = partner_of(partners, scene, from) else { return };
        let asked_at = Instant::from_nanos(asked_at);
        let mut compared = 0;
        for (partition, theirs) in roots.iter() {
            let Some(item) = partner.items.get_mut(&partition).filter(|item| item.asked_at == asked_at)
            else {
                continue;
            };
            compared += 1;
            item.wiped_at = wiped_at;
            let mine = scene.replica.digest(partition).root();
            if theirs == item.asked_root {
                item.equal_at = asked_at;
                item.covered = Some((theirs, scene.now));
            }
            if theirs == item.asked_root || theirs == 0 || item.nothing_new == Some((mine, theirs)) {
                item.verified_at = asked_at;
            } else if owned.contains(&partition) {
                partner.wanted.insert(partition);
            }
            // What does not count yet is asked again soon.
            let counts = !scene.fence.is_filling(partition) || since.is_some_and(|since| since <= asked_at);
            item.due = scene.now + if counts { COMPARE_EVERY } else { ASK_AGAIN_SOON };
        }
        scene.outbox.count_many(Metric::Compares, compared);
    }

    /// Another member holds what was here.
    pub fn on_covered(&self, scene: &Scene<'_>, from: u16, roots: Roots<'_>) {
        let mut state = self.state.lock();
        let Some(partner) = partner_of(&mut state.partners, scene, from) else { return };
        for (partition, root) in roots.iter() {
            if let Some(item) = partner.items.get_mut(&partition) {
                item.covered = Some((root, scene.now));
                if scene.replica.digest(partition).root() == root {
                    // It has all that is here, or has dropped it by agreement.
                    item.equal_at = scene.now;
                }
            }
        }
    }

    /// A question of a pull was answered, or not.
    pub fn on_bulk(&self, scene: &mut Scene<'_>, ticket: u64, response: Option<&[u8]>) {
        let mut state = self.state.lock();
        let of_ticket =
            |partner: &Partner| partner.running.as_ref().is_some_and(|running| running.ticket == ticket);
        let Some((member, partner)) = state.partners.iter_mut().find(|(_, partner)| of_ticket(partner))
        else {
            return;
        };
        let (member, Some(mut running)) = (*member, partner.running.take()) else { return };
        let step = response.map_or(Step::Broken, |bytes| running.pull.on_answer(scene.replica, bytes));
        match (step, scene.view.index_of(member)) {
            (Step::Ask(question), Some(index)) => {
                scene.outbox.ask_bulk(scene.view.member(index).address, member, ticket, &question);
                partner.running = Some(running);
            }
            (Step::Done, Some(index)) if running.generation == partner.generation => {
                finish(scene, partner, index, &running);
            }
            (Step::Ask(_) | Step::Done | Step::Broken, _) => {
                scene.outbox.count(Metric::RepairPullsFailed);
                partner.wanted.extend(running.pull.partitions());
                partner.not_before = scene.now + PULL_AGAIN_AFTER;
            }
        }
    }

    /// How much is left to do.
    #[must_use]
    pub fn backlog(&self, fence: &Fence) -> Backlog {
        let state = self.state.lock();
        let filling = state.sure.iter().filter(|partition| fence.is_filling(**partition)).count();
        let pulls = state.partners.values().filter(|partner| partner.running.is_some()).count();
        Backlog { filling, strays: state.strays.len(), pulls }
    }
}

/// What was compared with a member that answers, if anything; what is about an earlier start of it counts
/// no more.
fn partner_of<'a>(
    partners: &'a mut BTreeMap<MemberId, Partner>,
    scene: &Scene<'_>,
    from: u16,
) -> Option<&'a mut Partner> {
    let member = scene.view.member(from);
    let partner = partners.get_mut(&member.id)?;
    partner.follow(member.peer.generation());
    Some(partner)
}

/// Everything that the other held is here.
fn finish(scene: &mut Scene<'_>, partner: &mut Partner, index: u16, running: &Running) {
    scene.outbox.count_many(Metric::RepairRecords, running.pull.copied as u64);
    let mut covered = Vec::new();
    for (partition, theirs) in running.pull.roots() {
        let mine = scene.replica.digest(partition).root();
        if running.pull.refused == 0 {
            Roots::push(&mut covered, partition, theirs);
        }
        let Some(item) = partner.items.get_mut(&partition) else { continue };
        item.verified_at = item.verified_at.max(running.begun);
        item.nothing_new = Some((mine, theirs));
        if mine == theirs {
            item.equal_at = running.begun;
            item.covered = Some((mine, scene.now));
        }
    }
    if !covered.is_empty() {
        scene.send(index, &Message::Covered { roots: Roots::over(&covered) });
    }
}

/// The other members that take part.
fn living<'a>(scene: &'a Scene<'_>) -> impl Iterator<Item = u16> + 'a {
    let view = scene.view;
    let is_living = move |index: &u16| {
        let member = view.member(*index);
        // Whoever was called down and is heard is back before gossip says so.
        let is_back = || view.is_up(*index) && scene.now.since(member.peer.heard_at()) < BACK_WITHIN;
        *index != view.me() && (member.state == MemberState::Alive || is_back())
    };
    (0..view.members().len() as u16).filter(is_living)
}

fn standing_of(scene: &Scene<'_>, member: u16) -> crate::peer::Standing {
    scene.view.member(member).peer.standing()
}

impl Scene<'_> {
    fn send(&mut self, to: u16, message: &Message<'_>) {
        self.link.send(self.now, self.view, to, message, self.outbox);
    }

    fn is_usable(&self, member: u16) -> bool {
        self.view.is_usable(member, self.now, self.suspect_after)
    }

    /// The other owners of a partition, in the layout in force and in replaced ones.
    fn other_owners(&self, partition: u16) -> impl Iterator<Item = u16> + '_ {
        let primaries = self.view.primaries(partition).iter().copied();
        primaries.chain(self.view.former_owners(partition)).filter(|owner| *owner != self.view.me())
    }
}

impl State {
    /// Another layout or another gap: what is compared with whom starts over.
    fn follow_basis(&mut self, scene: &Scene<'_>) {
        let (round, _) = scene.fence.round();
        let basis = (scene.view.layout(), scene.view.is_settled(), round);
        if self.basis == Some(basis) {
            return;
        }
        let new_gap = self.basis.is_none_or(|(.., old)| old != round);
        self.basis = Some(basis);
        self.basis_at = scene.now;
        self.since = None;
        self.make_items(scene);
        if new_gap {
            let others = (0..scene.view.partitions()).filter(|partition| !self.owned.contains(partition));
            others.for_each(|partition| scene.fence.end_filling(round, partition));
        }
    }

    fn make_items(&mut self, scene: &Scene<'_>) {
        let mut old: BTreeMap<MemberId, BTreeMap<u16, Item>> = BTreeMap::new();
        for (member, partner) in &mut self.partners {
            old.insert(*member, std::mem::take(&mut partner.items));
        }
        for &partition in self.owned.union(&self.strays) {
            for owner in scene.other_owners(partition) {
                let member = scene.view.member(owner).id;
                let known = old.get(&member).and_then(|items| items.get(&partition)).copied();
                let mut item = known.unwrap_or_default();
                if self.strays.contains(&partition) || scene.fence.is_filling(partition) {
                    item.due = item.due.min(scene.now);
                }
                let partner = self.partners.entry(member).or_default();
                partner.items.insert(partition, item);
                partner.due = Instant::ZERO;
            }
        }
        let is_needed = |partner: &Partner| !partner.items.is_empty() || !partner.wanted.is_empty();
        self.partners.retain(|_, partner| is_needed(partner) || partner.running.is_some());
    }
}

impl Partner {
    /// Another start of it: it holds nothing of what the last one held, and what was being copied from
    /// that one broke off.
    fn follow(&mut self, generation: Generation) {
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        for item in self.items.values_mut() {
            *item = Item { due: Instant::ZERO, ..Item::default() };
        }
        self.due = Instant::ZERO;
    }
}
