//! Which members are placed, what was before, and who has heard of it.
//!
//! A [`Layout`] is a list of members and the partition table that follows from it. Members need not
//! agree on anything to have the same layout; they need only know the same members. But they do not
//! hear of a change at the same moment, and a new owner holds nothing yet. So a replaced layout stays
//! in force beside the current one ([`Layouts`]): its owners are still written to and still asked,
//! until every living member says ([`Standing`], in every frame) that it uses the current layout and
//! that all partitions it owns in it are filled. That is the switch, and each member makes it when it
//! sees it; whoever is early or late only writes to too many. (Garage's layout trackers do the same
//! with numbered layouts; here a hash stands for the number, and nobody has to agree on it.)

use super::placement::PartitionTable;
use crate::ids::MemberId;
use crate::peer::Standing;
use crate::time::{Duration, Instant};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// Replaced layouts that stay in force at most. More pile up only while members come and go faster
/// than partitions fill; then those between the first and the last, which were never filled, go.
const PREVIOUS_MAX: usize = 8;

thread_local! {
    /// Tables that somebody still uses, which are not computed again: not for a layout that comes back
    /// while it is being replaced, and once for all nodes where one thread simulates many.
    static KNOWN_TABLES: RefCell<KnownTables> = RefCell::default();
}

/// Tables by what they follow from: members, number of replicas and of partitions.
#[derive(Default)]
struct KnownTables(BTreeMap<Vec<u8>, Weak<PartitionTable>>);

impl KnownTables {
    fn find(&mut self, origin: &[u8], compute: impl FnOnce() -> Arc<PartitionTable>) -> Arc<PartitionTable> {
        if let Some(known) = self.0.get(origin).and_then(Weak::upgrade) {
            return known;
        }
        let table = compute();
        self.0.retain(|_, known| 0 < known.strong_count());
        self.0.insert(origin.to_vec(), Arc::downgrade(&table));
        table
    }
}

/// The placed members, and who holds what.
#[derive(Clone, Debug)]
pub struct Layout {
    ids: Arc<[MemberId]>,
    /// A number for each that stands for its site; empty when none is on one.
    sites: Arc<[u64]>,
    hash: u64,
    table: Arc<PartitionTable>,
}

impl Layout {
    /// The layout of these members.
    #[must_use]
    pub fn new(ids: BTreeSet<MemberId>, replicas: usize, partitions_log2: u8) -> Self {
        Self::on_sites(ids, &BTreeMap::new(), replicas, partitions_log2)
    }

    /// The layout of these members, of which some are on sites ([`crate::ids::Site::number`]).
    #[must_use]
    pub fn on_sites(
        ids: BTreeSet<MemberId>,
        sites: &BTreeMap<MemberId, u64>,
        replicas: usize,
        partitions_log2: u8,
    ) -> Self {
        let sites: Arc<[u64]> = Self::sites_of(&ids, sites).collect();
        let ids: Arc<[MemberId]> = ids.into_iter().collect();
        let numbers: Vec<u64> = ids.iter().map(|id| id.0).collect();
        let mut bytes = vec![replicas as u8, partitions_log2];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(sites.iter().flat_map(|site| site.to_le_bytes()));
        let hash = xxh3_64(&bytes) & !Standing::FLAGS;
        let compute = || {
            Arc::new(if sites.is_empty() {
                PartitionTable::new(&numbers, replicas, partitions_log2)
            } else {
                PartitionTable::on_sites(&numbers, &sites, replicas, partitions_log2)
            })
        };
        let table = KNOWN_TABLES.with_borrow_mut(|known| known.find(&bytes, compute));
        Self { ids, sites, hash, table }
    }

    /// The sites of these members in order; nothing when none is on one.
    fn sites_of<'a>(
        ids: &'a BTreeSet<MemberId>,
        sites: &'a BTreeMap<MemberId, u64>,
    ) -> impl Iterator<Item = u64> + 'a {
        let site_of = |id: &MemberId| sites.get(id).copied().unwrap_or(0);
        let is_any = !sites.is_empty() && ids.iter().any(|id| site_of(id) != 0);
        ids.iter().filter(move |_| is_any).map(site_of)
    }

    /// Whether it is the layout of these members on these sites.
    #[must_use]
    pub fn is_on(&self, ids: &BTreeSet<MemberId>, sites: &BTreeMap<MemberId, u64>) -> bool {
        self.ids.iter().eq(ids) && self.sites.iter().copied().eq(Self::sites_of(ids, sites))
    }

    /// Whether it is the layout of these members, which are in order.
    #[must_use]
    pub fn is_of(&self, ids: &[MemberId]) -> bool {
        *self.ids == *ids
    }

    /// The placed members, in order.
    #[must_use]
    pub fn ids(&self) -> &[MemberId] {
        &self.ids
    }

    /// Stands for the list: equal hashes, equal tables. Its low bits are zero.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Who holds what, by place in [`Layout::ids`].
    #[must_use]
    pub fn table(&self) -> &Arc<PartitionTable> {
        &self.table
    }
}

/// The layout in force, and those that it replaced and that are still needed.
#[derive(Clone, Debug)]
pub struct Layouts {
    current: Layout,
    /// Oldest first.
    previous: Vec<Layout>,
    /// Settled lately: nobody is written to for their sake, but their owners remember requests.
    recent: Vec<(Instant, Layout)>,
    /// This process takes part: what it replaces from now on was written to.
    founded: bool,
    /// Others said that they use the layout in force, so it is in use even if this process takes no part yet.
    heard: bool,
}

impl Layouts {
    /// The layouts of a process that starts.
    #[must_use]
    pub fn new(first: Layout) -> Self {
        Self { current: first, previous: Vec::new(), recent: Vec::new(), founded: false, heard: false }
    }

    /// The layout in force.
    #[must_use]
    pub fn current(&self) -> &Layout {
        &self.current
    }

    /// Replaced layouts whose owners are still written to and asked, oldest first.
    #[must_use]
    pub fn previous(&self) -> &[Layout] {
        &self.previous
    }

    /// Layouts that were settled lately.
    pub fn recent(&self) -> impl Iterator<Item = &Layout> {
        self.recent.iter().map(|(_, layout)| layout)
    }

    /// Whether this process takes part.
    #[must_use]
    pub fn is_founded(&self) -> bool {
        self.founded
    }

    /// Puts another layout in force.
    pub fn replace(&mut self, layout: Layout) {
        let old = std::mem::replace(&mut self.current, layout);
        if self.founded || self.heard {
            self.keep(old);
        }
        self.heard = false;
        self.previous.retain(|layout| layout.hash != self.current.hash);
    }

    /// Takes note that others use or used the layout of these members, which are in order; when it is news it
    /// is made, and the answer is `true`.
    pub fn learn(&mut self, ids: &[MemberId], make: impl FnOnce() -> Layout) -> bool {
        if self.current.is_of(ids) {
            self.heard = true;
            return false;
        }
        let is_news = !self.previous.iter().any(|layout| layout.is_of(ids));
        if is_news {
            self.keep(make());
        }
        is_news
    }

    fn keep(&mut self, layout: Layout) {
        self.previous.retain(|other| other.hash != layout.hash);
        self.previous.push(layout);
        if PREVIOUS_MAX < self.previous.len() {
            // The first held data for certain, the last may be what others use.
            self.previous.remove(1);
        }
    }

    /// This process takes requests from now on: what it replaces is in use.
    pub fn found(&mut self) {
        self.founded = true;
    }

    /// Everybody uses the current layout and is full: the replaced ones have served.
    pub fn settle(&mut self, now: Instant) {
        self.founded = true;
        self.recent.extend(self.previous.drain(..).map(|layout| (now, layout)));
    }

    /// Forgets what was settled more than this long ago; `true` when something went.
    pub fn expire(&mut self, now: Instant, after: Duration) -> bool {
        let before = self.recent.len();
        self.recent.retain(|(at, _)| now.since(*at) <= after);
        self.recent.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(ids: &[u64]) -> Layout {
        Layout::new(ids.iter().map(|id| MemberId(*id)).collect(), 3, 6)
    }

    #[test]
    fn what_was_in_force_stays_until_it_is_settled() {
        let at = Instant::from_nanos;
        let mut layouts = Layouts::new(layout(&[1]));
        layouts.replace(layout(&[1, 2]));
        assert!(layouts.previous().is_empty(), "nothing was founded yet");
        layouts.settle(at(1));
        layouts.replace(layout(&[1, 2, 3]));
        layouts.replace(layout(&[1, 3]));
        let previous: Vec<usize> = layouts.previous().iter().map(|layout| layout.ids().len()).collect();
        assert_eq!(previous, [2, 3]);
        layouts.replace(layout(&[1, 2, 3]));
        assert_eq!(layouts.previous().len(), 2, "back in force, it is not a previous one");
        let learn = |layouts: &mut Layouts, ids: &[u64]| {
            let made = layout(ids);
            layouts.learn(made.clone().ids(), || made)
        };
        assert!(!learn(&mut layouts, &[1, 2]) && learn(&mut layouts, &[4]));
        layouts.settle(at(2));
        assert_eq!((layouts.previous().len(), layouts.recent().count()), (0, 3));
        assert!(!layouts.expire(at(4), Duration::from_nanos(2)));
        assert!(layouts.expire(at(5), Duration::from_nanos(2)));
    }

    #[test]
    fn what_others_use_is_kept_by_who_takes_no_part_yet() {
        let mut layouts = Layouts::new(layout(&[1, 2]));
        assert!(!layouts.learn(layout(&[1, 2]).ids(), || unreachable!("it is in force")));
        layouts.replace(layout(&[1]));
        layouts.replace(layout(&[3]));
        let previous: Vec<u64> = layouts.previous().iter().map(|layout| layout.ids()[0].0).collect();
        assert_eq!((previous, layouts.previous()[0].ids().len()), (vec![1], 2), "of [1] nobody has heard");
    }

    #[test]
    fn sites_make_another_layout_and_none_the_same() {
        let ids: BTreeSet<MemberId> = (1..=6).map(MemberId).collect();
        let on = |of: fn(u64) -> u64| {
            let sites = (1..=6).map(|id| (MemberId(id), of(id))).collect();
            (Layout::on_sites(ids.clone(), &sites, 3, 6), sites)
        };
        let plain = Layout::new(ids.clone(), 3, 6);
        let (none, _) = on(|_| 0);
        assert_eq!((none.hash(), none.is_on(&ids, &BTreeMap::new())), (plain.hash(), true));
        let (three, sites) = on(|id| id % 3 + 1);
        assert!(three.hash() != plain.hash() && three.table() != plain.table());
        assert!(
            three.is_on(&ids, &sites) && !three.is_on(&ids, &BTreeMap::new()) && !plain.is_on(&ids, &sites)
        );
    }

    #[test]
    fn the_first_and_the_last_replaced_layout_are_never_given_up() {
        let mut layouts = Layouts::new(layout(&[0]));
        layouts.settle(Instant::ZERO);
        (1..20).for_each(|id| layouts.replace(layout(&[id])));
        let ids: Vec<u64> = layouts.previous().iter().map(|layout| layout.ids()[0].0).collect();
        assert_eq!((ids.len(), ids[0], ids[PREVIOUS_MAX - 1]), (PREVIOUS_MAX, 0, 18));
    }

    #[test]
    fn a_table_is_computed_once_while_it_is_used() {
        let computed = layout(&[1, 2, 3]);
        assert!(Arc::ptr_eq(computed.table(), layout(&[3, 2, 1]).table()));
        assert!(!Arc::ptr_eq(computed.table(), layout(&[1, 2]).table()));
        let other = Layout::new(computed.ids().iter().copied().collect(), 2, 6);
        assert_eq!((computed.table().replicas(), other.table().replicas()), (3, 2));
        let used = || KNOWN_TABLES.with_borrow(|known| known.0.len());
        let before = used();
        drop((computed, other));
        let _last = layout(&[9]);
        assert!(used() < before, "what nobody uses is forgotten");
    }

    #[test]
    fn a_standing_is_one_number_and_equal_lists_have_equal_hashes() {
        let (a, b) = (layout(&[1, 2]), layout(&[2, 1]));
        assert_eq!(a.hash(), b.hash());
        assert_ne!(a.hash(), Layout::new(a.ids().iter().copied().collect(), 2, 6).hash());
        for bits in 0..=Standing::FLAGS {
            let flag = |bit: u32| bits >> bit & 1 == 1;
            let standing = Standing {
                layout: a.hash(),
                full: flag(0),
                leaving: flag(1),
                settled: flag(2),
                aside: flag(3),
                cut_off: flag(4),
            };
            assert_eq!(Standing::unpack(standing.pack()), standing);
        }
    }
}
