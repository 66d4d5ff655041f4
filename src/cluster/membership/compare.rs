//! Packets beside foca's: comparing whole lists, so that nobody misses for long what gossip lost.
//!
//! ```text
//! kind(1) = 0   what foca made
//! kind(1) = 1   sender, receiver, digest(8): "this is what I have"
//! kind(1) = 2   sender, receiver, records: "this is what I have; yours was different"
//! ```
//!
//! Foca has no exchange of state: its answer to an announcement names only members that are alive, as
//! many as fit into one packet (82 of IPv4), picked at random. So a newcomer would learn of the dead
//! late or never, and a rumour that was lost stays lost. Here a node asks another from time to time
//! whether the lists agree, by a digest; only if they do not, the whole list comes back, in as many
//! packets as it takes. What is in it counts like gossip.

use super::Name;
use super::pace::{COMPARE_PACKETS_MAX, PACKET_BYTES_MAX};
use bytes::{Buf, BufMut};
use foca::{Codec, Member, PostcardCodec, State};

/// First byte of foca's packets.
pub(super) const KIND_FOCA: u8 = 0;
const KIND_DIGEST: u8 = 1;
const KIND_RECORDS: u8 = 2;

/// What a packet of this file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Who sent it.
    pub(super) from: Member<Name>,
    /// Whom it is for.
    pub(super) to: Name,
    pub(super) body: Body,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Digest(u64),
    Records(Vec<Member<Name>>),
}

impl Comparison {
    /// Reads a packet; `None` when it is not one of these, or broken.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (kind, mut rest) = packet.split_first()?;
        let mut codec = PostcardCodec;
        let from = codec.decode_member(&mut rest).ok()?;
        let to: Member<Name> = codec.decode_member(&mut rest).ok()?;
        let body = match *kind {
            KIND_DIGEST => Body::Digest(rest.try_get_u64().ok().filter(|_| rest.is_empty())?),
            KIND_RECORDS => {
                let mut records = Vec::new();
                while !rest.is_empty() {
                    records.push(codec.decode_member(&mut rest).ok()?);
                }
                Body::Records(records)
            }
            _ => return None,
        };
        Some(Self { from, to: to.id().clone(), body })
    }
}

/// A number that two nodes with the same list share: a sum over the members, so that no order matters.
/// Who is suspected is left out; that changes too often.
pub(super) fn digest<'a>(members: impl Iterator<Item = &'a Member<Name>>) -> u64 {
    members.fold(0, |sum, member| {
        let mut bytes = encoded(member.id(), 0, State::Alive);
        bytes.push(u8::from(member.state() == State::Down));
        sum.wrapping_add(xxhash_rust::xxh3::xxh3_64(&bytes))
    })
}

/// "This is what I have."
pub(super) fn digest_packet(from: &Member<Name>, to: &Name, digest: u64) -> Vec<u8> {
    let mut packet = head(KIND_DIGEST, from, to);
    packet.put_u64(digest);
    packet
}

/// The whole list, in packets; when there are too many, those that begin at `start`.
pub(super) fn record_packets(
    from: &Member<Name>,
    to: &Name,
    members: &[&Member<Name>],
    start: usize,
) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut packet = head(KIND_RECORDS, from, to);
    let empty_bytes = packet.len();
    let (before, after) = members.split_at(start.checked_rem(members.len()).unwrap_or(0));
    for member in after.iter().chain(before) {
        let record = encoded(member.id(), member.incarnation(), member.state());
        if PACKET_BYTES_MAX < packet.len() + record.len() {
            let full = std::mem::replace(&mut packet, head(KIND_RECORDS, from, to));
            packets.push(full);
            if packets.len() == COMPARE_PACKETS_MAX {
                return packets;
            }
        }
        packet.extend_from_slice(&record);
    }
    if empty_bytes < packet.len() || packets.is_empty() {
        packets.push(packet);
    }
    packets
}

fn head(kind: u8, from: &Member<Name>, to: &Name) -> Vec<u8> {
    let mut packet = Vec::with_capacity(PACKET_BYTES_MAX);
    packet.push(kind);
    packet.extend_from_slice(&encoded(from.id(), from.incarnation(), from.state()));
    packet.extend_from_slice(&encoded(to, 0, State::Alive));
    packet
}

fn encoded(name: &Name, incarnation: u16, state: State) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    let member = Member::new(name.clone(), incarnation, state);
    PostcardCodec.encode_member(&member, &mut bytes).expect("a vector has room for everything");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Site;

    #[test]
    fn a_site_is_carried_and_without_one_nothing_changes() {
        let with = |site: &str| {
            let site = Site::parse(site).expect("a name of a site");
            let address = ([10, 0, 0, 1], 7).into();
            Member::new(Name { address, generation: 1_790_000_000_000, site }, 3, State::Alive)
        };
        let longest = "x".repeat(Site::BYTES_MAX);
        for site in ["", "eu-west", &longest] {
            let packet = digest_packet(&with(site), with("").id(), 9);
            let parsed = Comparison::parse(&packet).expect("it was made here");
            assert_eq!((parsed.from, parsed.to), (with(site), with("").id().clone()));
        }
        let plain = encoded(with("").id(), 3, State::Alive);
        let generation = [128, 216, 193, 162, 140, 52];
        assert_eq!(plain, [&[0, 10, 0, 0, 1, 7][..], &generation, &[3, 0]].concat());
        let other = [&with("eu"), &with("us")].map(|member| digest(std::iter::once(member)));
        assert_ne!(other[0], other[1]);
    }
    use std::net::SocketAddr;

    fn member(number: u16, state: State) -> Member<Name> {
        let address = SocketAddr::from(([10, 0, 0, 1], number));
        Member::new(Name { address, generation: 1_790_000_000_000, site: Site::default() }, 3, state)
    }

    fn list(len: u16) -> Vec<Member<Name>> {
        (1..=len).map(|n| member(n, if n % 3 == 0 { State::Down } else { State::Alive })).collect()
    }

    #[test]
    fn a_list_travels_in_small_packets_and_arrives_whole() {
        let (from, to) = (member(9_000, State::Alive), member(9_001, State::Alive));
        for len in [0, 1, 70, 80, 100, 200] {
            let list = list(len);
            let refs: Vec<_> = list.iter().collect();
            let mut arrived = Vec::new();
            for packet in record_packets(&from, to.id(), &refs, 7) {
                assert!(packet.len() <= PACKET_BYTES_MAX);
                let parsed = Comparison::parse(&packet).expect("well made");
                assert_eq!((&parsed.from, &parsed.to), (&from, to.id()));
                let Body::Records(records) = parsed.body else { panic!("records") };
                arrived.extend(records);
            }
            arrived.sort_by_key(|member| member.id().address);
            assert_eq!(arrived, list);
        }
    }

    #[test]
    fn a_list_that_is_too_long_goes_in_turns() {
        let list = list(2_000);
        let refs: Vec<_> = list.iter().collect();
        let (from, to) = (member(9_000, State::Alive), member(9_001, State::Alive));
        let mut arrived = std::collections::BTreeSet::new();
        for start in (0..2_000).step_by(500) {
            let packets = record_packets(&from, to.id(), &refs, start);
            assert_eq!(packets.len(), COMPARE_PACKETS_MAX);
            for packet in packets {
                let Some(Comparison { body: Body::Records(records), .. }) = Comparison::parse(&packet) else {
                    panic!("records")
                };
                arrived.extend(records.iter().map(|member| member.id().address));
            }
        }
        assert_eq!(arrived.len(), 2_000);
    }

    #[test]
    fn the_digest_tells_lists_apart_but_not_orders_or_suspicions() {
        let mut list = list(50);
        let before = digest(list.iter());
        list.reverse();
        list[4] = Member::new(list[4].id().clone(), 9, State::Suspect);
        assert_eq!(digest(list.iter()), before);
        list[4] = Member::new(list[4].id().clone(), 9, State::Down);
        assert_ne!(digest(list.iter()), before);
        assert_ne!(digest(list[1..].iter()), before);
    }

    #[test]
    fn broken_packets_are_refused() {
        let (from, to) = (member(9_000, State::Alive), member(9_001, State::Alive));
        let whole = digest_packet(&from, to.id(), 77);
        assert_eq!(Comparison::parse(&whole).expect("whole").body, Body::Digest(77));
        for len in 0..whole.len() {
            assert_eq!(Comparison::parse(&whole[..len]), None, "{len}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(Comparison::parse(&longer), None);
        let mut strange = whole;
        strange[0] = 7;
        assert_eq!(Comparison::parse(&strange), None);
    }
}
