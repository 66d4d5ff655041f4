//! What this process knows of one member: which frames of it were seen, when it was heard, what it was
//! asked, and what it says of itself. It changes with every frame, beside the views and under no lock of
//! theirs.

use super::aside::Lateness;
use crate::ids::{Generation, Token, Version};
use crate::metrics::Metric;
use crate::peer::message::ANSWERED_MAX;
use crate::peer::{Answered, Envelope, Standing};
use crate::time::{Duration, Instant, LeastDuration, TailDuration, UsualDuration};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

const WINDOW_WORDS: usize = 32;
const WINDOW_BITS: u64 = WINDOW_WORDS as u64 * 64;
/// How fast the lowest seen delay may rise again: 1 ms per second. Real clocks drift a thousand times
/// slower; a stepped clock is followed within minutes.
const SKEW_RISE_PER_S: i64 = 1_000_000;

/// A member that was away has shown within this time what it kept from before: partitions are compared every
/// ten seconds.
const BACK_AFTER: Duration = Duration::from_secs(30);

/// What this process knows of a member, changed with every frame.
#[derive(Debug, Default)]
pub struct Peer {
    /// Sequence number of the next frame to it, per lane.
    next_peer: AtomicU64,
    next_gossip: AtomicU64,
    heard_at: AtomicU64,
    /// When the oldest question was asked that it has not been heard since; 0 = none.
    asked_at: AtomicU64,
    pinged_at: AtomicU64,
    /// When the first ping went out that it has not been heard since; 0 = none.
    first_ping_at: AtomicU64,
    /// When this node last had to do without it, and since when; 0 = never since it started.
    apart_at: AtomicU64,
    apart_since: AtomicU64,
    /// This node was cut off from it, as from most others, and has not heard it since ([`super::isolation`]).
    lost: AtomicBool,
    reads_in_flight: AtomicI64,
    writes_in_flight: AtomicI64,
    refused_space_at: AtomicU64,
    /// How long it usually takes to answer a read.
    pub usual_read: UsualDuration,
    /// Within which time, beyond the way to it and back, it answers nearly all reads.
    pub read_tail: TailDuration,
    /// The way to it and back, as probes measure it. What waits for this member waits for so much longer.
    pub way: LeastDuration,
    /// Whether its answers are late too often.
    pub lateness: Lateness,
    /// What it last said of itself ([`Standing`], packed).
    standing: AtomicU64,
    /// Lock order: a leaf; nothing else is locked while it is held.
    inbound: Mutex<Inbound>,
    /// Since when it is to be told of the first of `answered`; 0 = there is none.
    untold_since: AtomicU64,
    /// Its reads that this node has answered. A leaf, too.
    answered: Mutex<SmallVec<[Untold; ANSWERED_MAX]>>,
}

/// A read of a front end that this node has answered, and when.
#[derive(Clone, Copy, Debug)]
struct Untold {
    token: Token,
    version: Version,
    at: Instant,
}

#[derive(Debug)]
struct Inbound {
    generation: Generation,
    peer: Window,
    gossip: Window,
    /// Lowest seen difference between our clock and the sender's, delay included, in nanoseconds.
    skew: i64,
    skew_at: Instant,
    /// When the frame was sent that the standing is from.
    standing_at: Instant,
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            generation: 0,
            peer: Window::default(),
            gossip: Window::default(),
            skew: i64::MAX,
            skew_at: Instant::ZERO,
            standing_at: Instant::ZERO,
        }
    }
}

/// A sliding window over sequence numbers (RFC 4303, section 3.4.3).
#[derive(Debug, Default)]
struct Window {
    highest: u64,
    seen: [u64; WINDOW_WORDS],
}

impl Window {
    /// Whether the number is new; remembers it.
    fn admit(&mut self, sequence: u64) -> bool {
        if self.highest < sequence {
            let skipped = (sequence - self.highest).min(WINDOW_BITS);
            for number in sequence + 1 - skipped..=sequence {
                let (word, bit) = Self::place(number);
                self.seen[word] &= !bit;
            }
            self.highest = sequence;
        } else if WINDOW_BITS <= self.highest - sequence {
            return false;
        }
        let (word, bit) = Self::place(sequence);
        let new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        new
    }

    fn place(sequence: u64) -> (usize, u64) {
        ((sequence / 64) as usize % WINDOW_WORDS, 1 << (sequence % 64))
    }
}

/// Which lane a frame came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameLane {
    /// Requests, writes, reads.
    Peer,
    /// Membership.
    Gossip,
}

impl Peer {
    /// Which start of it was heard last.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.inbound.lock().generation
    }

    /// The next sequence number for a frame to this member; the first is 1.
    pub fn next_sequence(&self, lane: FrameLane) -> u64 {
        let counter = match lane {
            FrameLane::Peer => &self.next_peer,
            FrameLane::Gossip => &self.next_gossip,
        };
        counter.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes an authentic frame in: the start it comes from, its place in the window, its age.
    ///
    /// # Errors
    /// The count under which it is to be dropped.
    pub fn accept(
        &self,
        lane: FrameLane,
        envelope: &Envelope,
        received_at: Instant,
        now: Instant,
        stale_after: Duration,
    ) -> Result<(), Metric> {
        let mut inbound = self.inbound.lock();
        if envelope.generation < inbound.generation {
            return Err(Metric::PeerUnknown);
        }
        if inbound.generation < envelope.generation {
            *inbound = Inbound { generation: envelope.generation, ..Inbound::default() };
            self.apart_at.store(0, Ordering::Relaxed);
            // A new process has nothing to tell of the time when the other one was out of reach.
            self.lost.store(false, Ordering::Relaxed);
        }
        if inbound.lag(envelope.sent_at, received_at, now) > stale_after {
            return Err(Metric::PeerStale);
        }
        let window = match lane {
            FrameLane::Peer => &mut inbound.peer,
            FrameLane::Gossip => &mut inbound.gossip,
        };
        if !window.admit(envelope.sequence) {
            return Err(Metric::PeerReplayed);
        }
        if inbound.standing_at <= envelope.sent_at {
            // Frames may overtake each other; what was said last counts.
            inbound.standing_at = envelope.sent_at;
            self.standing.store(envelope.standing.pack(), Ordering::Release);
        }
        drop(inbound);
        self.heard_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
        self.forgive();
        Ok(())
    }

    /// This node has to do without it now.
    pub fn note_apart(&self, now: Instant) {
        if !self.was_apart(now, BACK_AFTER) {
            self.apart_since.store(self.heard_at().as_nanos(), Ordering::Relaxed);
        }
        self.apart_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Since when it was out of reach, if it is or was until lately: what it holds and does not own may be from
    /// before that, and others may not have seen it yet.
    #[must_use]
    pub fn apart_since(&self, now: Instant) -> Option<Instant> {
        let since = Instant::from_nanos(self.apart_since.load(Ordering::Relaxed));
        self.was_apart(now, BACK_AFTER).then_some(since)
    }

    /// Whether it was out of reach within this time and lives on: it may have done things, for clients that
    /// came to it, of which this node heard nothing.
    #[must_use]
    pub fn was_apart(&self, now: Instant, window: Duration) -> bool {
        match self.apart_at.load(Ordering::Relaxed) {
            0 => false,
            at => now.since(Instant::from_nanos(at)) < window,
        }
    }

    /// This node is cut off from it.
    pub fn mark_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether this node was cut off from it and has not taken note of the end of that.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// It was heard again, if it was lost; says so once.
    pub fn take_lost(&self) -> bool {
        self.is_lost() && self.lost.swap(false, Ordering::AcqRel)
    }

    /// What it last said of itself.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::unpack(self.standing.load(Ordering::Acquire))
    }

    /// What this node says of itself, for its own place in the view.
    pub fn say(&self, standing: Standing) {
        self.standing.store(standing.pack(), Ordering::Release);
    }

    /// Forgets open questions: it was heard, or this node was away and could not hear it.
    pub fn forgive(&self) {
        self.asked_at.store(0, Ordering::Relaxed);
        self.first_ping_at.store(0, Ordering::Relaxed);
    }

    /// When the member was last heard.
    #[must_use]
    pub fn heard_at(&self) -> Instant {
        Instant::from_nanos(self.heard_at.load(Ordering::Relaxed))
    }

    /// Notes that it was asked something.
    pub fn note_asked(&self, now: Instant) {
        let _ = self.asked_at.compare_exchange(0, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// For how long a question has gone without a sign of life; zero when none is open.
    #[must_use]
    pub fn silent_for(&self, now: Instant) -> Duration {
        match self.asked_at.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            asked => now.since(Instant::from_nanos(asked)),
        }
    }

    /// How long an answer from it takes by itself: the way there and back, and an eighth of that for jitter; zero
    /// until it was measured.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        let least = self.way.get();
        least + least / 8
    }

    /// Whether it has been silent for longer than a healthy member would be, a ping included: other
    /// questions may be answered to somebody else. What a round trip takes is allowed on top.
    #[must_use]
    pub fn is_silent(&self, now: Instant, suspect_after: Duration) -> bool {
        let silent_for = self.silent_for(now);
        if silent_for <= suspect_after {
            return false;
        }
        let pinged_for = match self.first_ping_at.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            at => now.since(Instant::from_nanos(at)),
        };
        let round_trip = self.round_trip();
        suspect_after + round_trip < silent_for && suspect_after / 4 + round_trip < pinged_for
    }

    /// Whether it is time for another ping; notes it when it is.
    pub fn take_ping(&self, now: Instant, every: Duration) -> bool {
        let last = Instant::from_nanos(self.pinged_at.load(Ordering::Relaxed));
        let due = every <= now.since(last);
        if due {
            self.pinged_at.store(now.as_nanos(), Ordering::Relaxed);
            let first = &self.first_ping_at;
            let _ = first.compare_exchange(0, now.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
        }
        due
    }

    /// It has answered a read after so long.
    pub fn note_read(&self, waited: Duration) {
        self.usual_read.note(waited);
        self.note_read_tail(waited);
    }

    /// It has answered a read after so long, or was given up then.
    pub fn note_read_tail(&self, waited: Duration) {
        self.read_tail.note(waited.saturating_sub(self.round_trip()));
    }

    /// Its read was answered: it is to be told with the next frame. Says whether there is no room for another.
    pub fn note_answered(&self, now: Instant, token: Token, version: Version) -> bool {
        let mut answered = self.answered.lock();
        if answered.is_empty() {
            self.untold_since.store(now.as_nanos(), Ordering::Relaxed);
        }
        answered.push(Untold { token, version, at: now });
        ANSWERED_MAX <= answered.len()
    }

    /// Since when it has to be told of an answered read.
    #[must_use]
    pub fn untold_since(&self) -> Option<Instant> {
        match self.untold_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Instant::from_nanos(since)),
        }
    }

    /// Takes out what it is to be told of, as much as one frame takes.
    pub fn take_answered(&self, now: Instant) -> SmallVec<[Answered; ANSWERED_MAX]> {
        if self.untold_since().is_none() {
            return SmallVec::new();
        }
        let mut answered = self.answered.lock();
        let told = |Untold { token, version, at }| Answered { token, version, held: now.since(at) };
        // Other threads may have added more before this one came to send.
        let count = answered.len().min(ANSWERED_MAX);
        let taken = answered.drain(..count).map(told).collect();
        let since = answered.first().map_or(0, |untold| untold.at.as_nanos());
        self.untold_since.store(since, Ordering::Relaxed);
        taken
    }

    /// Adds to (or takes from) the number of reads that it has been asked and has not answered.
    pub fn count_reads(&self, change: i64) {
        self.reads_in_flight.fetch_add(change, Ordering::Relaxed);
    }

    /// Reads asked and not answered.
    #[must_use]
    pub fn reads_in_flight(&self) -> i64 {
        self.reads_in_flight.load(Ordering::Relaxed)
    }

    /// Adds to (or takes from) the number of writes that wait for it.
    pub fn count_writes(&self, change: i64) {
        self.writes_in_flight.fetch_add(change, Ordering::Relaxed);
    }

    /// Reads and writes that wait for it.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.reads_in_flight() + self.writes_in_flight.load(Ordering::Relaxed)
    }

    /// Notes that it has no memory for new keys.
    pub fn note_refused_space(&self, now: Instant) {
        self.refused_space_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Forgets that: everything is being wiped.
    pub fn forget_refused_space(&self) {
        self.refused_space_at.store(0, Ordering::Relaxed);
    }

    /// Whether it refused a new key lately.
    #[must_use]
    pub fn refused_space_within(&self, now: Instant, span: Duration) -> bool {
        match self.refused_space_at.load(Ordering::Relaxed) {
            0 => false,
            at => now.since(Instant::from_nanos(at)) < span,
        }
    }
}

impl Inbound {
    /// How long a frame has been on its way, beyond the quickest frames of that sender.
    fn lag(&mut self, sent_at: Instant, received_at: Instant, now: Instant) -> Duration {
        let difference = |at: Instant| i128::from(at.as_nanos()) - i128::from(sent_at.as_nanos());
        let clamp = |number: i128| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        if self.skew != i64::MAX {
            let seconds = received_at.since(self.skew_at).as_secs() as i64;
            if 0 < seconds {
                self.skew = self.skew.saturating_add(seconds * SKEW_RISE_PER_S);
                self.skew_at = received_at;
            }
        } else {
            self.skew_at = received_at;
        }
        self.skew = self.skew.min(clamp(difference(received_at)));
        let lag = clamp(difference(now)).saturating_sub(self.skew);
        Duration::from_nanos(u64::try_from(lag).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn check(peer: &Peer, generation: u64, sequence: u64, sent: u64, received: u64) -> Result<(), Metric> {
        let standing = Standing::default();
        let envelope = Envelope { sender: MemberId(1), generation, sequence, sent_at: at(sent), standing };
        let stale_after = Duration::from_millis(1_000);
        peer.accept(FrameLane::Peer, &envelope, at(received), at(received), stale_after)
    }

    #[test]
    fn frames_are_taken_once_in_any_order_within_the_window() {
        let peer = Peer::default();
        for sequence in [1, 3, 2, 2_000, 1_999] {
            assert_eq!(check(&peer, 5, sequence, 100, 101), Ok(()), "{sequence}");
            assert_eq!(check(&peer, 5, sequence, 100, 101), Err(Metric::PeerReplayed), "{sequence}");
        }
        assert_eq!(check(&peer, 5, 10_000, 100, 101), Ok(()));
        assert_eq!(check(&peer, 5, 10_000 - WINDOW_BITS, 100, 101), Err(Metric::PeerReplayed));
        assert_eq!(check(&peer, 5, 10_001 - WINDOW_BITS, 100, 101), Ok(()));
    }

    #[test]
    fn an_older_start_is_refused_and_a_newer_one_begins_afresh() {
        let peer = Peer::default();
        assert_eq!(check(&peer, 5, 1, 100, 101), Ok(()));
        assert_eq!(check(&peer, 6, 1, 100, 101), Ok(()));
        assert_eq!(check(&peer, 5, 2, 100, 101), Err(Metric::PeerUnknown));
    }

    #[test]
    fn late_frames_are_refused_whatever_the_clocks_say() {
        for sender_clock in [0u64, 50_000, 200_000] {
            let peer = Peer::default();
            let sent = |at: u64| at + sender_clock;
            assert_eq!(check(&peer, 1, 1, sent(1_000), 100_000), Ok(()));
            assert_eq!(check(&peer, 1, 2, sent(1_010), 100_900), Ok(()));
            assert_eq!(check(&peer, 1, 3, sent(1_020), 101_200), Err(Metric::PeerStale));
            assert_eq!(check(&peer, 1, 4, sent(2_220), 101_220), Ok(()));
        }
    }

    #[test]
    fn of_answered_reads_none_is_left_untold() {
        let peer = Peer::default();
        assert!(peer.take_answered(at(1)).is_empty());
        for token in 0..20 {
            let is_full = peer.note_answered(at(10 + token), token, Version::default());
            assert_eq!(is_full, ANSWERED_MAX as u64 <= token + 1, "{token}");
        }
        assert_eq!(peer.untold_since(), Some(at(10)));
        let tokens = |now| peer.take_answered(now).iter().map(|one| one.token).collect::<Vec<_>>();
        assert_eq!(tokens(at(40)), (0..16).collect::<Vec<_>>());
        assert_eq!(peer.untold_since(), Some(at(26)), "more than one frame takes is told with the next");
        assert_eq!(peer.take_answered(at(40))[0].held, Duration::from_millis(14));
        assert_eq!((tokens(at(41)), peer.untold_since()), (vec![], None));
    }

    #[test]
    fn who_is_far_away_is_not_silent() {
        let peer = Peer::default();
        let suspect_after = Duration::from_millis(80);
        peer.way.note(at(1), Duration::from_millis(200));
        peer.note_asked(at(10));
        assert!(peer.take_ping(at(30), suspect_after / 4));
        assert!(!peer.is_silent(at(315), suspect_after) && peer.is_silent(at(316), suspect_after));
    }

    #[test]
    fn silence_is_counted_from_the_first_open_question() {
        let peer = Peer::default();
        peer.note_asked(at(10));
        peer.note_asked(at(20));
        assert_eq!(peer.silent_for(at(110)), Duration::from_millis(100));
        let suspect_after = Duration::from_millis(80);
        assert!(!peer.is_silent(at(110), suspect_after), "it was not pinged");
        assert!(peer.take_ping(at(110), suspect_after) && !peer.take_ping(at(115), suspect_after));
        assert!(!peer.is_silent(at(130), suspect_after) && peer.is_silent(at(131), suspect_after));
        assert_eq!(check(&peer, 1, 1, 100, 120), Ok(()));
        assert_eq!(peer.silent_for(at(500)), Duration::ZERO);
        assert_eq!(peer.heard_at(), at(120));
    }
}
