//! Who is in the cluster, who holds which key, and what this process knows of each member.
//!
//! A [`ClusterView`] is immutable and swapped whole: members, their state and the partition table.
//! Only the controller makes one. What changes with every frame lives in [`Peer`], shared by all views of
//! a member.

mod addresses;
pub mod aside;
pub mod fence;
pub mod isolation;
pub mod layout;
pub mod link;
pub mod membership;
pub mod peer;
pub mod placement;

use crate::ids::MemberId;
use crate::peer::MemberLists;
use crate::time::{Duration, Instant};
use addresses::Addresses;
use layout::{Layout, Layouts};
pub use peer::{FrameLane, Peer};
use placement::PartitionTable;
use std::net::SocketAddr;
use std::sync::Arc;

/// Most replicas that a key can have (the upper end of the `replicas` setting).
pub const REPLICAS_MAX: usize = 7;
/// Most members that answer for a key at once: its replicas, and those that are being replaced.
pub const HOLDERS_MAX: usize = 2 * REPLICAS_MAX;

/// What gossip says of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Taking part.
    Alive,
    /// Not answering since then. It keeps its place: members behind it on the preference list stand in.
    Down(Instant),
}

/// One member as a view sees it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its stable name.
    pub id: MemberId,
    /// Where it is reached.
    pub address: SocketAddr,
    /// What gossip says.
    pub state: MemberState,
    /// What this process knows of it.
    pub peer: Arc<Peer>,
}

/// Members, placement and liveness at one moment.
#[derive(Debug)]
pub struct ClusterView {
    members: Vec<Member>,
    addresses: Addresses,
    me: u16,
    layout: u64,
    /// In order.
    placed: Vec<MemberId>,
    table: PartitionTable,
    /// Of layouts that were replaced and are still in force.
    previous: Vec<PartitionTable>,
    /// The hash of the first of these.
    oldest: u64,
    /// Of layouts whose owners may remember requests.
    recent: Vec<PartitionTable>,
    /// The lists of placed members, as they are told to others.
    layout_lists: Vec<u8>,
}

/// The members that answer for a partition right now: the first of its preference list that can be
/// reached, at most as many as there are replicas, and behind them the owners of layouts that are being
/// replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    list: [Holder; HOLDERS_MAX],
    len: usize,
}

/// One of [`Holders`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Index into the view.
    pub member: u16,
    /// It is one of the key's replicas, not one that stands in.
    pub primary: bool,
    /// It was a replica in a layout that is being replaced, and is none any more.
    pub former: bool,
    /// It is a replica in the oldest layout that is being replaced, which everybody has.
    pub oldest: bool,
    /// The absent replica that it stands in for.
    pub stands_in_for: Option<u16>,
}

impl Holders {
    /// The holders in preference order.
    #[must_use]
    pub fn as_slice(&self) -> &[Holder] {
        &self.list[..self.len]
    }

    /// Planted: nobody thinks of former owners.
    #[cfg(test)]
    pub fn without_former(&self) -> Self {
        let mut holders = Self::default();
        self.as_slice().iter().filter(|holder| !holder.former).for_each(|holder| holders.push(*holder));
        holders
    }

    fn push(&mut self, holder: Holder) {
        if self.len < HOLDERS_MAX {
            self.list[self.len] = holder;
            self.len += 1;
        }
    }
}

impl ClusterView {
    /// A view of these members (in any order, each address once), one of which is `me`.
    ///
    /// # Panics
    /// When `me` is not among them: every node is a member of its own view.
    #[must_use]
    pub fn new(mut members: Vec<Member>, me: MemberId, layouts: &Layouts) -> Self {
        members.sort_by_key(|member| member.id);
        let me = members.binary_search_by_key(&me, |member| member.id);
        let me = me.expect("every node is a member of its own view");
        let addresses = Addresses::of(members.iter().map(|member| member.address));
        let place = |id: &MemberId| members.binary_search_by_key(id, |member| member.id).ok();
        let table = |layout: &Layout| {
            let places: Vec<Option<u16>> =
                layout.ids().iter().map(|id| place(id).map(|place| place as u16)).collect();
            layout.table().renamed(&places)
        };
        let (layout, current) = (layouts.current().hash(), table(layouts.current()));
        let previous = layouts.previous().iter().map(table).collect();
        let recent = layouts.recent().map(table).collect();
        let mut layout_lists = Vec::new();
        let others = layouts.previous().iter().map(Layout::ids);
        MemberLists::push(&mut layout_lists, layouts.current().ids(), others);
        Self {
            members,
            addresses,
            me: me as u16,
            layout,
            placed: layouts.current().ids().to_vec(),
            table: current,
            previous,
            oldest: layouts.previous().first().map_or(0, Layout::hash),
            recent,
            layout_lists,
        }
    }

    /// The lists of placed members, the one in force first ([`MemberLists`]).
    #[must_use]
    pub fn layout_lists(&self) -> &[u8] {
        &self.layout_lists
    }

    /// The hash of the layout in force.
    #[must_use]
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> u16 {
        self.table.partitions() as u16
    }

    /// Whether no replaced layout is in force.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.previous.is_empty()
    }

    /// Members that own a partition in a layout that is being replaced (not this one), in no order; each
    /// may come more than once.
    pub fn former_owners(&self, partition: u16) -> impl Iterator<Item = u16> + '_ {
        let primaries = self.primaries(partition);
        let all = self.previous.iter().flat_map(move |table| table.replicas_of(partition));
        all.copied().filter(move |member| !primaries.contains(member))
    }

    /// Whether a member owns a partition, in the layout in force or in one that is being replaced.
    #[must_use]
    pub fn is_owner(&self, partition: u16, member: u16) -> bool {
        self.primaries(partition).contains(&member) || self.former_owners(partition).any(|one| one == member)
    }

    /// Whether everybody writes to a member for a partition's sake: it owns it in the layout in force, or in
    /// the oldest one that is being replaced, which all have. The layouts between those not everybody has
    /// seen.
    #[must_use]
    pub fn is_sure_owner(&self, partition: u16, member: u16) -> bool {
        let is_in = |table: &PartitionTable| table.replicas_of(partition).contains(&member);
        self.primaries(partition).contains(&member) || self.previous.first().is_some_and(is_in)
    }

    /// Whether everybody writes to this node what it holds of a partition: it owns it in the layout in force, or
    /// owned it and every living member has that in mind. (One that came lately may not know what was before,
    /// and one that has settled writes to nobody for its sake.)
    #[must_use]
    pub fn is_written_here(&self, partition: u16) -> bool {
        if self.previous.is_empty() || !self.former_owners(partition).any(|owner| owner == self.me) {
            return true;
        }
        let oldest = self.oldest;
        let has_it_in_mind = |member: u16| {
            let standing = self.member(member).peer.standing();
            (standing.layout == self.layout && !standing.settled) || standing.layout == oldest
        };
        let members = 0..self.members.len() as u16;
        members.filter(|member| *member != self.me && self.is_up(*member)).all(has_it_in_mind)
    }

    /// Whether none of a partition's owners in the oldest layout that is being replaced can be asked.
    #[must_use]
    pub fn was_given_up(&self, partition: u16, is_usable: impl Fn(u16) -> bool) -> bool {
        let owners = self.previous.first().map_or(&[][..], |table| table.replicas_of(partition));
        !owners.is_empty() && !owners.iter().any(|owner| is_usable(*owner))
    }

    /// Whether this node became an owner of a partition of late, so that others may remember requests that
    /// it does not.
    #[must_use]
    pub fn owns_newly(&self, partition: u16) -> bool {
        let others = self.previous.iter().chain(&self.recent);
        others.into_iter().any(|table| !table.replicas_of(partition).contains(&self.me))
    }

    /// Members that may remember requests for a partition: its owners in all layouts of late.
    #[must_use]
    pub fn rememberers(&self, partition: u16) -> Vec<u16> {
        let recent = self.recent.iter().flat_map(|table| table.replicas_of(partition)).copied();
        let mut all: Vec<u16> = self.former_owners(partition).chain(recent).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// This node's index.
    #[must_use]
    pub fn me(&self) -> u16 {
        self.me
    }

    /// A member by index.
    #[must_use]
    pub fn member(&self, index: u16) -> &Member {
        &self.members[usize::from(index)]
    }

    /// All members, by id.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether a member (this node included) is at this address.
    #[must_use]
    pub fn is_address_of_member(&self, address: SocketAddr) -> bool {
        self.addresses.has(address)
    }

    /// The index of a member.
    #[must_use]
    pub fn index_of(&self, id: MemberId) -> Option<u16> {
        self.members.binary_search_by_key(&id, |member| member.id).ok().map(|index| index as u16)
    }

    /// How many members are alive, this node included.
    #[must_use]
    pub fn alive_count(&self) -> usize {
        self.members.iter().filter(|member| member.state == MemberState::Alive).count()
    }

    /// The partition of a key.
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        self.table.partition_of(key)
    }

    /// The replicas of a partition, reachable or not, in preference order.
    #[must_use]
    pub fn primaries(&self, partition: u16) -> &[u16] {
        let list = self.table.preference_list(partition);
        &list[..self.table.replicas().min(list.len())]
    }

    /// Whether a member is alive, or was called down and has been heard since. Its silence does not count.
    #[must_use]
    pub fn is_up(&self, index: u16) -> bool {
        let member = self.member(index);
        match member.state {
            MemberState::Alive => true,
            // Gossip may be late: who was heard just before it was called down is there, and serves what it holds.
            MemberState::Down(since) => since < member.peer.heard_at() + HEARD_LATELY,
        }
    }

    /// Whether a member is to hold data in the layout in force.
    #[must_use]
    pub fn is_placed(&self, id: MemberId) -> bool {
        self.placed.binary_search(&id).is_ok()
    }

    /// Whether a member can be asked: alive and not silent, or called down but heard since.
    #[must_use]
    pub fn is_usable(&self, index: u16, now: Instant, suspect_after: Duration) -> bool {
        if index == self.me {
            return true;
        }
        self.is_up(index) && !self.member(index).peer.is_silent(now, suspect_after)
    }

    /// Whether a member can be given something to answer for: it can be asked, and has not stood aside.
    #[must_use]
    pub fn may_hold(&self, index: u16, now: Instant, suspect_after: Duration) -> bool {
        !self.member(index).peer.standing().aside && self.is_usable(index, now, suspect_after)
    }

    /// The members that answer for a partition now.
    #[must_use]
    pub fn holders(&self, partition: u16, now: Instant, suspect_after: Duration) -> Holders {
        let list = self.table.preference_list(partition);
        let replicas = self.table.replicas().min(list.len());
        let mut holders = Holders::default();
        let mut absent = [0u16; REPLICAS_MAX];
        let mut absent_count = 0;
        for &member in &list[..replicas] {
            if self.may_hold(member, now, suspect_after) {
                holders.push(Holder { member, primary: true, ..Holder::default() });
            } else {
                absent[absent_count] = member;
                absent_count += 1;
            }
        }
        let mut absent = absent[..absent_count].iter();
        for &member in &list[replicas..] {
            if absent.as_slice().is_empty() {
                break;
            }
            if self.may_hold(member, now, suspect_after) {
                let stands_in_for = absent.next().copied();
                holders.push(Holder { member, stands_in_for, ..Holder::default() });
            }
        }
        if !self.previous.is_empty() {
            self.add_former(partition, &mut holders, now, suspect_after);
        }
        holders
    }

    /// Former owners go on being written to and asked until their successors are filled. One that stands
    /// in already is a holder as it is.
    fn add_former(&self, partition: u16, holders: &mut Holders, now: Instant, suspect_after: Duration) {
        let oldest = self.previous.first().map_or(&[][..], |table| table.replicas_of(partition));
        for held in &mut holders.list[..holders.len] {
            held.oldest = oldest.contains(&held.member);
        }
        for member in self.former_owners(partition) {
            if let Some(held) = holders.list[..holders.len].iter_mut().find(|held| held.member == member) {
                held.former |= !held.primary;
            } else if self.may_hold(member, now, suspect_after) {
                let oldest = oldest.contains(&member);
                holders.push(Holder { member, former: true, oldest, ..Holder::default() });
            }
        }
    }

    /// The members behind the replicas on a partition's preference list, in order.
    #[must_use]
    pub fn fallbacks(&self, partition: u16) -> &[u16] {
        let list = self.table.preference_list(partition);
        &list[self.table.replicas().min(list.len())..]
    }
}

/// Who was heard within this time is not away, whatever gossip says. Shorter than the silence after which a member
/// is bypassed.
const HEARD_LATELY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Standing;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn who_owned_a_partition_serves_only_while_everybody_writes_to_it() {
        let member = |port: u16| {
            let address: SocketAddr = ([127, 0, 0, 1], port).into();
            Member { id: MemberId::of(address), address, state: MemberState::Alive, peer: Arc::default() }
        };
        let all: Vec<Member> = (1..=4).map(member).collect();
        let layout = |members: &[Member]| Layout::new(members.iter().map(|member| member.id).collect(), 2, 6);
        let (old, new) = (layout(&all), layout(&all[1..]));
        let mut layouts = Layouts::new(old.clone());
        layouts.settle(at(1));
        layouts.replace(new.clone());
        let view = ClusterView::new(all.clone(), all[0].id, &layouts);
        let owned = (0..view.partitions()).find(|partition| view.is_owner(*partition, view.me()));
        let owned = owned.expect("a quarter of all are");
        let say = |of: usize, layout: &Layout, settled: bool| {
            let standing = Standing { layout: layout.hash(), settled, ..Standing::default() };
            all[of].peer.say(standing);
        };
        assert!(!view.is_written_here(owned), "nobody has said anything yet");
        say(1, &old, true);
        say(2, &new, false);
        say(3, &new, false);
        assert!(view.is_written_here(owned));
        say(2, &new, true);
        assert!(!view.is_written_here(owned), "one does not think of what was before");
        say(2, &layout(&all[2..]), false);
        assert!(!view.is_written_here(owned), "one has a layout that is not known here");
        layouts.settle(at(2));
        assert!(
            ClusterView::new(all.clone(), all[0].id, &layouts).is_written_here(owned),
            "as who stands in"
        );
    }
}
