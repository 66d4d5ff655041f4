//! Tells clients who is where: the members (0x22), who answers for one key (0x27), and who holds which key, so
//! that they can ask the right member first (0x28).
//!
//! The table of 0x28 is the layout in force, as every member computes it; its hash is the version. A page is written on the
//! spot from the view, whatever its offset: nothing is kept for a client between two pages, and a layout that changes
//! in between shows by the version. It says nothing about stand-ins and former owners. A client that asks the wrong
//! member is served as any other.

use super::{Arrival, Coordinator, Turn};
use crate::cluster::{ClusterView, Member, MemberState};
use crate::metrics::Metric;
use violet_client::wire::placement::{TableMember, TableShape, encode_page};
use violet_client::{Key, Response, Status, Value};

impl Coordinator {
    /// Answers with the page that begins at `offset`. A node that has not joined knows no table.
    pub(super) fn tell_placement(&self, turn: &mut Turn<'_>, arrival: &Arrival<'_>, offset: u32) {
        if !self.fence.has_joined() {
            return turn.outbox.count(Metric::DroppedFenced);
        }
        let mut page = Vec::new();
        let status = match push_page(turn.view, offset, &mut page) {
            Ok(()) => Status::Success,
            Err(status) => status,
        };
        let value = (status == Status::Success).then_some(Value { bytes: &page, version: 0 });
        self.answer(
            turn,
            &arrival.client,
            &Response { value, ..Response::of_status(arrival.client.id, status) },
        );
    }
}

fn push_page(view: &ClusterView, offset: u32, page: &mut Vec<u8>) -> Result<(), Status> {
    let replicas = view.primaries(0).len();
    let shape = TableShape {
        members: u16::try_from(view.members().len()).unwrap_or(u16::MAX),
        replicas: u8::try_from(replicas).unwrap_or(u8::MAX),
        partitions_log2: view.partitions().ilog2() as u8,
    };
    let member = |number: u16| {
        let member = view.member(number);
        TableMember { address: member.address, is_alive: view.is_up(number) }
    };
    let replica = |partition: u16, place: usize| view.primaries(partition)[place];
    encode_page(view.layout(), shape, offset, member, replica, page)
}

/// Who answers for a key: its replicas in order, in reach or not, then who stands in or was a replica before.
pub(super) fn locate(turn: &Turn<'_>, key: &Key) -> String {
    let (view, partition) = (turn.view, Coordinator::partition_of(turn, key));
    let holders = view.holders(partition, turn.now, turn.suspect_after);
    let is_held = |member: u16| holders.as_slice().iter().any(|holder| holder.member == member);
    let mut text = String::new();
    for &member in view.primaries(partition) {
        let role = if is_held(member) { "replica" } else { "absent-replica" };
        text += &format!("{} {role}\n", view.member(member).address);
    }
    for holder in holders.as_slice().iter().filter(|holder| !holder.primary) {
        let role = if holder.former { "former" } else { "stand-in" };
        text += &format!("{} {role}\n", view.member(holder.member).address);
    }
    text
}

/// All members, one `address state` a line.
pub(super) fn list_members(view: &ClusterView) -> String {
    let state = |member: &Member| match member.state {
        MemberState::Alive => "alive",
        MemberState::Down(_) => "down",
    };
    let mut lines: Vec<String> =
        view.members().iter().map(|member| format!("{} {}\n", member.address, state(member))).collect();
    lines.sort_unstable();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::layout::{Layout, Layouts};
    use crate::ids::MemberId;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use violet_client::placement::{Pages, Placement};
    use violet_client::wire::placement::Page;

    fn view(members: u16, replicas: usize, partitions_log2: u8) -> ClusterView {
        let member = |port: u16| {
            let address: SocketAddr = ([127, 0, 0, 1], port).into();
            Member { id: MemberId::of(address), address, state: MemberState::Alive, peer: Arc::default() }
        };
        let members: Vec<Member> = (1..=members).map(member).collect();
        let layout = Layout::new(members.iter().map(|member| member.id).collect(), replicas, partitions_log2);
        let me = members[0].id;
        ClusterView::new(members, me, &Layouts::new(layout))
    }

    fn told(view: &ClusterView) -> Placement {
        let mut pages = Pages::default();
        loop {
            let mut field = Vec::new();
            push_page(view, pages.wanted(), &mut field).expect("the offset is one that was asked for");
            let page = Page::decode(&field).expect("a page");
            if let Some(placement) = pages.take(&page).expect("pages of one table") {
                return placement;
            }
        }
    }

    #[test]
    fn a_client_finds_the_members_that_the_node_finds() {
        for (members, replicas, partitions_log2) in
            [(1, 3, 6), (2, 3, 11), (5, 1, 13), (15, 3, 11), (60, 7, 14)]
        {
            let view = view(members, replicas, partitions_log2);
            let placement = told(&view);
            assert_eq!(placement.version(), view.layout());
            for number in 0..2_000_u32 {
                let key = number.to_le_bytes();
                let here = view.primaries(view.partition_of(&key));
                let here: Vec<SocketAddr> = here.iter().map(|index| view.member(*index).address).collect();
                assert_eq!(placement.holders(&key).collect::<Vec<_>>(), here, "{members} {replicas}");
            }
        }
    }

    #[test]
    fn there_is_nothing_behind_the_table() {
        let mut field = Vec::new();
        assert_eq!(push_page(&view(3, 3, 6), 1_000_000, &mut field), Err(Status::Malformed));
        assert!(field.is_empty());
    }
}
