//! All links, and what becomes of a packet on them.
//!
//! A packet passes what limits the rate (of its sender, of the link, of its recipient), then chance and cuts, then
//! time.
//!
//! The limits of rate are all met at the moment of sending, and the longest wait counts: averages and the bottleneck are right,
//! coincidences of packets that have come from different distances are not modelled.

use crate::dice::Dice;
use crate::link::{Link, Shaper};
use crate::roster::{Endpoint, Ends};
use crate::rules::Rules;
use crate::settings::{Change, Settings};
use std::collections::BTreeMap;
use std::time::Duration;

const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;

/// One IP packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// Its length, headers included.
    pub bytes: usize,
    /// What the fragments of one datagram have in common (the id in the IP header), so that they share
    /// one draw of jitter; `None` for a packet that is whole.
    pub group: Option<u64>,
}

/// One copy of a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives, since the start of the run.
    pub at: Duration,
    /// Which bit of it is wrong, counted from its first byte.
    pub damaged_bit: Option<usize>,
}

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Loss by chance.
    Chance,
    /// The link is cut in this direction.
    Cut,
    /// No room in the queue before a limited rate.
    QueueFull,
    /// Longer than the MTU.
    TooLong,
    /// One of its ends is paused.
    Paused,
    /// One of its ends has crashed.
    Down,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 6] =
        [Self::Chance, Self::Cut, Self::QueueFull, Self::TooLong, Self::Paused, Self::Down];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chance => "chance",
            Self::Cut => "cut",
            Self::QueueFull => "queue-full",
            Self::TooLong => "too-long",
            Self::Paused => "paused",
            Self::Down => "down",
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It arrives, perhaps twice.
    Arrives(Delivery, Option<Delivery>),
    /// It does not.
    Lost(Cause),
}

impl Outcome {
    /// The copies that arrive: none, one or two.
    pub fn deliveries(self) -> impl Iterator<Item = Delivery> {
        let pair = match self {
            Self::Arrives(first, second) => [Some(first), second],
            Self::Lost(_) => [None, None],
        };
        pair.into_iter().flatten()
    }
}

/// What happened to packets (or datagrams, as they were sent), by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent.
    pub sent: u64,
    /// Lost, by cause, in the order of [`Cause::ALL`].
    lost: [u64; Cause::ALL.len()],
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
}

impl Counts {
    /// Lost for this cause.
    #[must_use]
    pub fn lost(&self, cause: Cause) -> u64 {
        self.lost[cause as usize]
    }

    /// Lost for any cause.
    #[must_use]
    pub fn lost_in_all(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.lost.iter_mut().zip(other.lost).for_each(|(sum, lost)| *sum += lost);
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
    }

    fn note(&mut self, outcome: Outcome, was_held: bool) {
        self.sent += 1;
        match outcome {
            Outcome::Lost(cause) => self.lost[cause as usize] += 1,
            Outcome::Arrives(first, second) => {
                self.duplicated += u64::from(second.is_some());
                self.reordered += u64::from(was_held);
                self.corrupted += u64::from(first.damaged_bit.is_some());
            }
        }
    }
}

/// What is special about one end.
#[derive(Clone, Debug, Default)]
struct Node {
    is_paused: bool,
    is_down: bool,
    up_rate: Option<u64>,
    down_rate: Option<u64>,
    up: Shaper,
    down: Shaper,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    rules: Rules,
    links: BTreeMap<(Endpoint, Endpoint), Link>,
    nodes: BTreeMap<Endpoint, Node>,
    counts: Counts,
}

impl Network {
    /// A network whose links are all alike.
    #[must_use]
    pub fn new(seed: u64, base: Settings) -> Self {
        let (links, nodes, counts) = (BTreeMap::new(), BTreeMap::new(), Counts::default());
        Self { seed, rules: Rules::new(base), links, nodes, counts }
    }

    /// What a link is in this network before any change; for building one.
    pub fn lay(&mut self, from: Endpoint, to: Endpoint, settings: Settings) {
        self.rules.lay(from, to, settings);
    }

    /// What all other links are before any change.
    #[must_use]
    pub fn base(&self) -> Settings {
        self.rules.base()
    }

    /// Changes what all other links are before any change.
    pub fn set_base(&mut self, base: Settings) {
        self.rules.set_base(base);
    }

    /// Sends one IP packet.
    pub fn send(&mut self, now: Duration, from: Endpoint, to: Endpoint, parcel: Parcel) -> Outcome {
        let Parcel { bytes, group } = parcel;
        self.carry(now, (from, to), group, bytes, |_| Fragments::whole(bytes))
    }

    /// Sends a UDP datagram with so many bytes in it, cut into as many packets as the MTU demands, all of which must
    /// arrive. Whether it is doubled, held back or damaged is drawn once.
    pub fn send_datagram(&mut self, now: Duration, from: Endpoint, to: Endpoint, bytes: usize) -> Outcome {
        self.carry(now, (from, to), None, bytes, |mtu| Fragments::of(bytes, mtu))
    }

    fn carry(
        &mut self,
        now: Duration,
        (from, to): (Endpoint, Endpoint),
        group: Option<u64>,
        bytes: usize,
        fragments_at: impl Fn(usize) -> Fragments,
    ) -> Outcome {
        let Self { seed, rules, links, nodes, counts } = self;
        let link = links.entry((from, to)).or_insert_with(|| Link::new(*seed, from, to));
        rules.refresh(link, from, to);
        let fragments = fragments_at(link.settings.mtu);
        let mut dice = link.dice_of_packet();
        // Chance is asked whatever else there is: a cut does not change what happens after it.
        let is_lost = (0..fragments.count).fold(false, |lost, _| link.loses(&mut dice) || lost);
        let draw = link.draw(now, group, &mut dice);
        let left_at = match block(nodes, link, (from, to), fragments) {
            Some(cause) => Err(cause),
            None => shape(nodes, link, (from, to), now, fragments),
        };
        let outcome = match left_at {
            Err(cause) => Outcome::Lost(cause),
            Ok(_) if is_lost => Outcome::Lost(Cause::Chance),
            Ok(left_at) => {
                let earliest = left_at + link.settings.delay + link.drift(now) + draw.jitter;
                let at = link.arrival(earliest, draw.held);
                copies(at, bytes, &link.settings, &mut dice)
            }
        };
        link.counts.note(outcome, draw.held.is_some());
        counts.note(outcome, draw.held.is_some());
        outcome
    }

    /// Changes links from some ends to some ends; later changes count over earlier ones.
    ///
    /// # Errors
    /// Too many changes are in force.
    pub fn change(&mut self, from: &Ends, to: &Ends, change: &Change) -> Result<(), String> {
        self.rules.change(from, to, change)
    }

    /// Multiplies all delays, compared to how they were before any such change.
    pub fn scale_delays(&mut self, factor: f64) {
        self.rules.scale_delays(factor);
    }

    /// Undoes all changes, scales and limits.
    pub fn reset(&mut self) {
        self.rules.reset();
        self.nodes.values_mut().for_each(|node| (node.up_rate, node.down_rate) = (None, None));
    }

    /// Cuts the links from some ends to some others, in this direction. What is inside both groups stays whole.
    pub fn cut(&mut self, from: &Ends, to: &Ends) {
        self.rules.cut(from, to);
    }

    /// Cuts both directions between some ends and some others.
    pub fn partition(&mut self, some: &Ends, others: &Ends) {
        self.cut(some, others);
        self.cut(others, some);
    }

    /// Cuts some ends off from everybody else; among themselves they stay joined.
    pub fn isolate(&mut self, ends: &Ends) {
        self.partition(ends, &ends.others());
    }

    /// Joins everything that was cut.
    pub fn heal(&mut self) {
        self.rules.heal();
    }

    /// Whether nothing passes in this direction.
    #[must_use]
    pub fn is_cut(&self, from: Endpoint, to: Endpoint) -> bool {
        self.rules.is_cut(from, to)
    }

    /// Packets to and from this end are lost until it is resumed. (Who drives processes stops those instead.)
    pub fn pause(&mut self, end: Endpoint) {
        self.nodes.entry(end).or_default().is_paused = true;
    }

    /// Ends a pause.
    pub fn resume(&mut self, end: Endpoint) {
        self.nodes.entry(end).or_default().is_paused = false;
    }

    /// Packets to and from this end are lost until it is started.
    pub fn crash(&mut self, end: Endpoint) {
        self.nodes.entry(end).or_default().is_down = true;
    }

    /// Ends a crash (and a pause).
    pub fn start(&mut self, end: Endpoint) {
        let node = self.nodes.entry(end).or_default();
        (node.is_down, node.is_paused) = (false, false);
    }

    /// Limits what an end sends and receives in all, in bits a second. The queues are as long as those of the links.
    pub fn limit(&mut self, end: Endpoint, up_rate: Option<u64>, down_rate: Option<u64>) {
        let node = self.nodes.entry(end).or_default();
        (node.up_rate, node.down_rate) = (up_rate, down_rate);
    }

    /// How a link is now.
    pub fn settings(&mut self, from: Endpoint, to: Endpoint) -> Settings {
        let link = self.links.entry((from, to)).or_insert_with(|| Link::new(self.seed, from, to));
        self.rules.refresh(link, from, to);
        link.settings
    }

    /// What happened to packets so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What happened to the packets of one link so far.
    #[must_use]
    pub fn counts_of(&self, from: Endpoint, to: Endpoint) -> Counts {
        self.links.get(&(from, to)).map_or_else(Counts::default, |link| link.counts)
    }
}

/// What keeps a packet from being sent at all.
fn block(
    nodes: &BTreeMap<Endpoint, Node>,
    link: &Link,
    (from, to): (Endpoint, Endpoint),
    fragments: Fragments,
) -> Option<Cause> {
    let is = |of: fn(&Node) -> bool| [from, to].iter().any(|end| nodes.get(end).is_some_and(of));
    if is(|node| node.is_down) {
        Some(Cause::Down)
    } else if is(|node| node.is_paused) {
        Some(Cause::Paused)
    } else if link.is_cut {
        Some(Cause::Cut)
    } else {
        (link.settings.mtu < fragments.bytes_each).then_some(Cause::TooLong)
    }
}

/// When the last fragment has passed all that limits the rate.
fn shape(
    nodes: &mut BTreeMap<Endpoint, Node>,
    link: &mut Link,
    (from, to): (Endpoint, Endpoint),
    now: Duration,
    fragments: Fragments,
) -> Result<Duration, Cause> {
    let Settings { rate, queue_bytes, .. } = link.settings;
    let mut left_at = Ok(now);
    for bytes in fragments.sizes() {
        let mut passed = Some(now);
        if let Some(node) = nodes.get_mut(&from) {
            passed = node.up.pass(now, bytes, node.up_rate, queue_bytes);
        }
        passed = passed.and_then(|at| Some(at.max(link.shaper.pass(now, bytes, rate, queue_bytes)?)));
        if let Some((at, node)) = passed.zip(nodes.get_mut(&to)) {
            passed = node.down.pass(now, bytes, node.down_rate, queue_bytes).map(|down| at.max(down));
        }
        left_at = left_at.and_then(|before| passed.map(|at| at.max(before)).ok_or(Cause::QueueFull));
    }
    left_at
}

/// The packets that a datagram is cut into.
#[derive(Clone, Copy, Debug)]
struct Fragments {
    count: usize,
    /// The length of all but the last, headers included.
    bytes_each: usize,
    last_bytes: usize,
}

impl Fragments {
    fn whole(bytes: usize) -> Self {
        Self { count: 1, bytes_each: bytes, last_bytes: bytes }
    }

    fn of(payload_bytes: usize, mtu: usize) -> Self {
        // The offset of a fragment is a multiple of eight.
        let room = (mtu - IP_HEADER_BYTES) / 8 * 8;
        let bytes = payload_bytes + UDP_HEADER_BYTES;
        // A whole packet needs no offset.
        if bytes <= mtu - IP_HEADER_BYTES {
            return Self {
                count: 1,
                bytes_each: bytes + IP_HEADER_BYTES,
                last_bytes: bytes + IP_HEADER_BYTES,
            };
        }
        let count = bytes.div_ceil(room);
        let last_bytes = bytes - (count - 1) * room + IP_HEADER_BYTES;
        Self { count, bytes_each: room + IP_HEADER_BYTES, last_bytes }
    }

    fn sizes(self) -> impl Iterator<Item = usize> {
        (1..=self.count)
            .map(move |number| if number == self.count { self.last_bytes } else { self.bytes_each })
    }
}

/// What arrives of a packet that was not lost.
fn copies(at: Duration, bytes: usize, settings: &Settings, dice: &mut Dice) -> Outcome {
    let is_damaged = dice.chance(settings.corrupt) && bytes != 0;
    let damaged_bit = is_damaged.then(|| dice.index(bytes * 8));
    let copy = dice
        .chance(settings.duplicate)
        .then(|| Delivery { at: at + dice.time(Duration::ZERO, settings.reorder_by), damaged_bit: None });
    Outcome::Arrives(Delivery { at, damaged_bit }, copy)
}
