//! The network: what becomes of a datagram between two places.
//!
//! Every directed pair of places is a link with random numbers of its own, so a new node does not
//! change what happens between the old ones. A link keeps order unless told otherwise; loss,
//! duplication, reordering and damage are knobs ([`Weather`]), partitions cut single directions.
//! Pure: a datagram goes in, the moments at which it arrives come out.

use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use violet_link::dice::Dice;

/// Payload that fits one Ethernet frame; a longer datagram is lost when any of its fragments is.
const FRAGMENT_BYTES: usize = 1_472;
const NODE_PORT: u16 = 4410;
/// Chances are per million.
pub const MILLION_PER_PERCENT: u32 = 10_000;

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

/// How bad the links are. Chances are per million datagrams (loss: per fragment).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Time that every datagram takes.
    pub delay: Duration,
    /// What it may take on top of that, keeping the order.
    pub jitter: Duration,
    /// Lost.
    pub loss: u32,
    /// Arriving twice.
    pub duplicate: u32,
    /// Held back, so that later ones overtake it.
    pub reorder: u32,
    /// For how long it is held back at most; a duplicate comes as late.
    pub reorder_by: Duration,
    /// Damaged: one bit flips. Only links between nodes are damaged, or all with `corrupt_clients`.
    pub corrupt: u32,
    /// Damage hits clients too (the raw layout has no checksum, so this needs the protobuf one).
    pub corrupt_clients: bool,
}

impl Default for Weather {
    /// A quiet local network.
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(100),
            jitter: Duration::from_micros(100),
            loss: 0,
            duplicate: 0,
            reorder: 0,
            reorder_by: Duration::from_millis(2),
            corrupt: 0,
            corrupt_clients: false,
        }
    }
}

/// One copy of a datagram on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives.
    pub at: Instant,
    /// Which bit of it is wrong.
    pub damaged_bit: Option<usize>,
}

/// What happened to datagrams, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    /// Datagrams that were sent.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost in a partition.
    pub cut: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Overtaken.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
}

#[derive(Debug)]
struct Link {
    dice: Dice,
    last_at: Instant,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    /// The weather everywhere …
    pub weather: Weather,
    /// … but on the links to and from these places.
    pub worse: BTreeMap<Place, Weather>,
    /// What it has done so far.
    pub toll: Toll,
    links: BTreeMap<(Place, Place), Link>,
    cut: BTreeSet<(Place, Place)>,
}

impl Network {
    /// A whole network.
    #[must_use]
    pub fn new(seed: u64, weather: Weather) -> Self {
        let (links, worse) = (BTreeMap::new(), BTreeMap::new());
        Self { seed, weather, worse, toll: Toll::default(), links, cut: BTreeSet::new() }
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: Place, to: Place) {
        self.cut.insert((from, to));
    }

    /// Whether nothing passes in this direction.
    #[must_use]
    pub fn is_cut(&self, from: Place, to: Place) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Joins everything that was cut.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Sends a datagram: zero to two deliveries.
    pub fn send(&mut self, now: Instant, from: Place, to: Place, bytes: &[u8]) -> [Option<Delivery>; 2] {
        let Self { seed, weather, worse, toll, links, cut } = self;
        let weather = worse.get(&from).or_else(|| worse.get(&to)).unwrap_or(weather);
        toll.sent += 1;
        let link = links.entry((from, to)).or_insert_with(|| Link {
            dice: Dice::of_part(*seed, "link", link_number(from, to)),
            last_at: Instant::ZERO,
        });
        let dice = &mut link.dice;
        let fragments = bytes.len().div_ceil(FRAGMENT_BYTES).max(1);
        let is_lost = (0..fragments).fold(false, |lost, _| dice.chance(weather.loss) || lost);
        if cut.contains(&(from, to)) {
            toll.cut += 1;
            return [None, None];
        }
        if is_lost {
            toll.lost += 1;
            return [None, None];
        }
        let earliest = now + weather.delay + dice.time(Duration::ZERO, weather.jitter);
        let mut at = earliest.max(link.last_at + Duration::from_nanos(1));
        if dice.chance(weather.reorder) {
            toll.reordered += 1;
            at = at + dice.time(Duration::ZERO, weather.reorder_by);
        } else {
            link.last_at = at;
        }
        let both_nodes = matches!((from, to), (Place::Node(_), Place::Node(_)));
        let is_damaged = dice.chance(weather.corrupt) && (both_nodes || weather.corrupt_clients);
        let damaged_bit = (is_damaged && !bytes.is_empty()).then(|| dice.index(bytes.len() * 8));
        toll.corrupted += u64::from(damaged_bit.is_some());
        let copy = dice.chance(weather.duplicate).then(|| {
            toll.duplicated += 1;
            Delivery { at: at + dice.time(Duration::ZERO, weather.reorder_by), damaged_bit: None }
        });
        [Some(Delivery { at, damaged_bit }), copy]
    }
}

fn link_number(from: Place, to: Place) -> u64 {
    let number = |place: Place| match place {
        Place::Node(number) => number as u64 * 2,
        Place::Client(number) => number as u64 * 2 + 1,
    };
    number(from) << 32 | number(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = Place::Node(0);
    const B: Place = Place::Node(1);

    fn arrivals(weather: Weather, others: usize) -> (Vec<Delivery>, Toll) {
        let mut network = Network::new(7, weather);
        let mut arrivals = Vec::new();
        for number in 0..1_000u64 {
            let now = Instant::from_nanos(1_000_000 * number);
            for other in 0..others {
                network.send(now, A, Place::Node(2 + other), b"other");
            }
            arrivals.extend(network.send(now, A, B, &number.to_le_bytes()).into_iter().flatten());
        }
        (arrivals, network.toll)
    }

    #[test]
    fn a_quiet_link_keeps_order_and_loses_nothing() {
        let weather = Weather { jitter: Duration::from_millis(50), ..Weather::default() };
        let (arrivals, toll) = arrivals(weather, 0);
        assert!(arrivals.is_sorted_by_key(|delivery| delivery.at) && arrivals.len() == 1_000);
        assert_eq!(toll, Toll { sent: 1_000, ..Toll::default() });
    }

    #[test]
    fn every_knob_turns_and_other_links_change_nothing() {
        let tenth = 100_000;
        let weather = Weather {
            loss: tenth,
            duplicate: tenth,
            reorder: tenth,
            reorder_by: Duration::from_millis(20),
            corrupt: tenth,
            ..Weather::default()
        };
        let (alone, toll) = arrivals(weather, 0);
        assert!(!alone.is_sorted_by_key(|delivery| delivery.at));
        for count in [toll.lost, toll.duplicated, toll.reordered, toll.corrupted] {
            assert!((50..150).contains(&count), "{toll:?}");
        }
        let (with_others, _) = arrivals(weather, 3);
        assert_eq!(alone, with_others);
    }

    #[test]
    fn a_cut_is_one_way_and_large_datagrams_are_lost_more_often() {
        let weather = Weather { loss: 100_000, ..Weather::default() };
        let mut network = Network::new(7, weather);
        network.cut(A, B);
        for _ in 0..1_000 {
            assert_eq!(network.send(Instant::ZERO, A, B, b"x"), [None, None]);
            network.send(Instant::ZERO, B, A, &[0; 10_000]);
        }
        assert_eq!(network.toll.cut, 1_000);
        assert!((430..620).contains(&network.toll.lost), "1 - 0.9^7 = 52 %: {}", network.toll.lost);
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
