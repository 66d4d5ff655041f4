//! What the router has to know of an IPv4 packet: whose it is, for whom, and which packets are pieces of one datagram.
//!
//! Bytes come from programs within the emulated world, so anything may be in them; what is not a whole IPv4 packet between
//! two nodes of this network is no packet. Nothing is changed but one bit where the model says that a packet is damaged:
//! no checksum is mended, so the receiving kernel finds the damage and drops the packet, as it would on a wire.

use std::net::Ipv4Addr;

/// The emulated network: 198.18.0.0/15, set aside for benchmarks, so it is nobody's.
pub const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// Its mask.
pub const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 254, 0, 0);
/// Nodes at most, and clients at most; 64 nodes is what two processors carry, and the last byte of an address stays plain.
pub const PLACES_MAX: usize = 250;
/// Clients have addresses apart from the nodes': 198.19.0.1 and on.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 0);

const HEADER_BYTES_MIN: usize = 20;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1FFF;

/// The address of the node with this index: the first, `n1`, is 198.18.0.1.
pub fn node_address(index: usize) -> Ipv4Addr {
    numbered(NETWORK, index)
}

/// The address of the client with this index: the first, `c1`, is 198.19.0.1.
pub fn client_address(index: usize) -> Ipv4Addr {
    numbered(CLIENTS, index)
}

fn numbered(base: Ipv4Addr, index: usize) -> Ipv4Addr {
    assert!(index < PLACES_MAX, "scenarios have fewer of both");
    let number = u32::try_from(index + 1).expect("at most PLACES_MAX");
    Ipv4Addr::from(u32::from(base) + number)
}

/// The head of a packet, as far as the router reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Who says to have sent it.
    pub source: Ipv4Addr,
    /// For whom it is.
    pub destination: Ipv4Addr,
    /// Same for all pieces of one datagram, absent when it is whole.
    pub group: Option<u64>,
}

impl Head {
    /// Reads the head; nothing if the bytes are not one whole IPv4 packet.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        if packet.len() < HEADER_BYTES_MIN || packet[0] >> 4 != 4 {
            return None;
        }
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        if usize::from(word(2)) != packet.len() {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let fragment = word(6) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0;
        let group = fragment.then(|| u64::from(packet[9]) << 16 | u64::from(word(4)));
        Some(Self { source: address(12), destination: address(16), group })
    }
}

/// How many there are of both; places are the nodes in turn, then the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Nodes.
    pub nodes: usize,
    /// Clients.
    pub clients: usize,
}

impl Places {
    /// The place that has an address.
    pub fn of(self, address: Ipv4Addr) -> Option<usize> {
        let number = |base: Ipv4Addr| {
            let number = u32::from(address).checked_sub(u32::from(base))?;
            usize::try_from(number).ok()?.checked_sub(1)
        };
        let node = number(NETWORK).filter(|index| *index < self.nodes);
        let client = || number(CLIENTS).filter(|index| *index < self.clients).map(|index| self.nodes + index);
        node.or_else(client)
    }

    /// The address of a place.
    pub fn address(self, place: usize) -> Ipv4Addr {
        place.checked_sub(self.nodes).map_or_else(|| node_address(place), client_address)
    }
}

/// Flips one bit, counted from the packet's first; a number past the end wraps around.
pub fn damage(packet: &mut [u8], bit: usize) {
    let bits = packet.len() * 8;
    let bit = bit % bits.max(1);
    if let Some(byte) = packet.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(fragment: u16) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[4..6].copy_from_slice(&0xABCD_u16.to_be_bytes());
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = 17;
        packet[12..16].copy_from_slice(&node_address(0).octets());
        packet[16..20].copy_from_slice(&node_address(4).octets());
        packet
    }

    #[test]
    fn the_head_names_both_ends() {
        let head = Head::parse(&packet(0x4000)).expect("a whole packet, not to be cut");
        assert_eq!((head.source, head.destination), (node_address(0), node_address(4)));
        assert_eq!(head.group, None);
    }

    #[test]
    fn the_first_a_middle_and_the_last_piece_are_of_one_group() {
        let group = |fragment| Head::parse(&packet(fragment)).expect("a packet").group;
        assert_eq!(group(0x2000), Some(17 << 16 | 0xABCD));
        assert_eq!(group(0x2000), group(0x20B9));
        assert_eq!(group(0x2000), group(0x00B9));
    }

    #[test]
    fn what_is_no_ipv4_packet_has_no_head() {
        let whole = packet(0);
        for length in 0..whole.len() {
            assert_eq!(Head::parse(&whole[..length]), None, "{length} bytes");
        }
        let mut six = whole;
        six[0] = 0x60;
        assert_eq!(Head::parse(&six), None);
    }

    #[test]
    fn addresses_and_places_agree() {
        let places = Places { nodes: PLACES_MAX, clients: PLACES_MAX };
        for place in 0..2 * PLACES_MAX {
            assert_eq!(places.of(places.address(place)), Some(place));
        }
        let few = Places { nodes: 15, clients: 1 };
        assert_eq!(few.of(Ipv4Addr::new(198, 18, 0, 15)), Some(14));
        assert_eq!(few.of(Ipv4Addr::new(198, 18, 0, 16)), None);
        assert_eq!(few.of(Ipv4Addr::new(198, 19, 0, 1)), Some(15));
        assert_eq!(few.of(Ipv4Addr::new(198, 19, 0, 2)), None);
        for nobody in
            [NETWORK, CLIENTS, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::BROADCAST, Ipv4Addr::UNSPECIFIED]
        {
            assert_eq!(few.of(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn damage_is_one_bit() {
        let (mut damaged, whole) = (packet(0), packet(0));
        damage(&mut damaged, 28 * 8 + 9);
        let differing: u32 = whole.iter().zip(&damaged).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(differing, 1);
        assert_ne!(whole[1], damaged[1]);
        damage(&mut [], 3);
    }
}
