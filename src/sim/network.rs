//! The network of a simulation: places with addresses, and the links between them in the simulation's time.
//!
//! What becomes of a datagram is [`violet_link`]'s to say, the same as for the emulator and the proxy; here it is only
//! told who is meant. Only what is between nodes is damaged: the raw layout of clients has no checksum.

use super::world::BEGIN;
use crate::time::Instant;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use violet_link::presets::Preset;
use violet_link::{Counts, Endpoint, Ends, Settings};

const NODE_PORT: u16 = 4410;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A node, by number.
    Node(usize),
    /// A client, by number.
    Client(usize),
}

impl Place {
    /// The address of a node or (with the port 0) of a client.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        let (network, number, port) = match self {
            Self::Node(number) => (0, number, NODE_PORT),
            Self::Client(number) => (1, number, 0),
        };
        let number = number as u16 + 1;
        let [high, low] = number.to_be_bytes();
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, network, high, low)), port)
    }

    /// What it is for the links: the first node is `n1` there, as in scenario files.
    #[must_use]
    pub fn endpoint(self) -> Endpoint {
        match self {
            Self::Node(number) => Endpoint(number as u32 + 1),
            Self::Client(number) => Endpoint::client(number as u32 + 1),
        }
    }

    /// The place with this address, whatever the port of a client.
    #[must_use]
    pub fn of(address: SocketAddr) -> Option<Self> {
        let IpAddr::V4(ip) = address.ip() else { return None };
        let [ten, network, high, low] = ip.octets();
        let number = usize::from(u16::from_be_bytes([high, low])).checked_sub(1)?;
        match (ten, network, address.port()) {
            (10, 0, NODE_PORT) => Some(Self::Node(number)),
            (10, 1, _) => Some(Self::Client(number)),
            _ => None,
        }
    }
}

/// A quiet local network.
#[must_use]
pub fn quiet() -> Settings {
    Preset::Lan.base()
}

/// One copy of a datagram on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Instant,
    /// Which bit of it is wrong.
    pub damaged_bit: Option<usize>,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    /// What they do.
    pub links: violet_link::Network,
    /// When their time begins.
    begin: Instant,
    /// Clients are placed where these many of the links' clients are, in turn.
    clients: Option<u32>,
    /// Datagrams of clients that would have been damaged.
    spared: u64,
}

impl Network {
    /// A network whose links are all alike.
    #[must_use]
    pub fn new(seed: u64, settings: Settings) -> Self {
        let links = violet_link::Network::new(seed, settings);
        Self { links, begin: BEGIN, clients: None, spared: 0 }
    }

    /// From now on these are the links; clients share so many ends of it in turn.
    pub fn replace(&mut self, now: Instant, links: violet_link::Network, clients: u32) {
        (self.links, self.begin, self.clients) = (links, now, Some(clients.max(1)));
    }

    /// Makes a change to all links to and from a place.
    ///
    /// # Errors
    /// The word that is wrong, and what is allowed.
    pub fn worsen(&mut self, place: Place, change: &str) -> Result<(), String> {
        let (change, ends) = (Settings::parse_change(change)?, Ends::one(place.endpoint()));
        violet_link::Control::Bad(ends, change).apply(&mut self.links)
    }

    /// Cuts what is between two groups, in one direction or both.
    pub fn cut(&mut self, some: &[Place], others: &[Place], both_ways: bool) {
        let ends = |places: &[Place]| Ends::Only(places.iter().map(|place| place.endpoint()).collect());
        let (some, others) = (ends(some), ends(others));
        self.links.cut(&some, &others);
        if both_ways {
            self.links.cut(&others, &some);
        }
    }

    /// Whether nothing passes in this direction.
    #[must_use]
    pub fn is_cut(&self, from: Place, to: Place) -> bool {
        self.links.is_cut(self.end(from), self.end(to))
    }

    /// How a link is now.
    pub fn settings(&mut self, from: Place, to: Place) -> Settings {
        self.links.settings(self.end(from), self.end(to))
    }

    fn end(&self, place: Place) -> Endpoint {
        match (place, self.clients) {
            (Place::Client(number), Some(clients)) => Endpoint::client(number as u32 % clients + 1),
            (Place::Node(_) | Place::Client(_), _) => place.endpoint(),
        }
    }

    /// Sends a datagram: zero to two deliveries.
    pub fn send(
        &mut self,
        now: Instant,
        from: Place,
        to: Place,
        bytes: &[u8],
    ) -> impl Iterator<Item = Delivery> + use<> {
        let (begin, ends) = (self.begin, (self.end(from), self.end(to)));
        let outcome = self.links.send_datagram(now.since(begin), ends.0, ends.1, bytes.len());
        let are_nodes = matches!((from, to), (Place::Node(_), Place::Node(_)));
        let is_damaged = outcome.deliveries().any(|delivery| delivery.damaged_bit.is_some());
        self.spared += u64::from(is_damaged && !are_nodes);
        outcome.deliveries().map(move |delivery| Delivery {
            at: begin + delivery.at,
            damaged_bit: delivery.damaged_bit.filter(|_| are_nodes),
        })
    }

    /// What happened to datagrams so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.links.counts();
        counts.corrupted -= self.spared;
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    const A: Place = Place::Node(0);
    const B: Place = Place::Node(1);

    #[test]
    fn only_what_is_between_nodes_is_damaged() {
        let mut network = Network::new(7, Settings { corrupt: 1_000_000, ..quiet() });
        let mut is_damaged = |from, to| {
            let deliveries: Vec<Delivery> = network.send(BEGIN, from, to, b"x").collect();
            assert!(deliveries.len() == 1 && BEGIN < deliveries[0].at);
            deliveries[0].damaged_bit.is_some()
        };
        assert!(is_damaged(A, B) && !is_damaged(A, Place::Client(0)) && !is_damaged(Place::Client(0), A));
        assert_eq!(network.counts().corrupted, 1);
    }

    #[test]
    fn a_bad_node_is_bad_in_both_directions_and_a_cut_is_as_asked() {
        let mut network = Network::new(7, quiet());
        network.worsen(B, "delay=20ms").expect("it is allowed");
        let delays = [(A, B), (B, A), (A, Place::Node(2))].map(|(from, to)| network.settings(from, to).delay);
        assert_eq!(delays, [Duration::from_millis(20), Duration::from_millis(20), quiet().delay]);
        network.cut(&[A], &[B], false);
        assert!(network.is_cut(A, B) && !network.is_cut(B, A));
        assert_eq!(network.send(BEGIN, A, B, b"x").count(), 0);
    }

    #[test]
    fn places_and_addresses_correspond() {
        for place in [A, B, Place::Client(0), Place::Client(300)] {
            assert_eq!(Place::of(place.address()), Some(place));
        }
        let mut address = Place::Client(5).address();
        address.set_port(9);
        assert_eq!(Place::of(address), Some(Place::Client(5)));
    }
}
