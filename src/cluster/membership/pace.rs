//! How fast gossip goes: time-outs, rates and packet sizes, by preset and by the number of members.
//!
//! All of them are written down here, so that a bound on detection time or on traffic can be read off
//! one page. The time-outs are floors: when a member is
//! far away they are stretched in proportion to the longest round trip ([`Pace::allow_for`]). What stretches the time-outs of a node that is itself in
//! trouble is in [`super::health`].

use crate::config::GossipPreset;
use crate::peer::ENVELOPE_BYTES;
use crate::time::Duration;
use foca::PeriodicParams;
use std::num::{NonZeroU8, NonZeroUsize};

/// Largest datagram that gossip sends: no path that carries the internet splits it.
pub(super) const DATAGRAM_BYTES_MAX: usize = 1_400;
/// Largest packet, the byte that tells its kind included.
pub(super) const PACKET_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - ENVELOPE_BYTES;
/// Largest packet that foca makes.
const FOCA_BYTES_MAX: usize = PACKET_BYTES_MAX - 1;

/// For this long after a start, a gap, a rejoin or while it is alone, a node is *settling*: it dials
/// and compares at the quick rate.
pub(super) const SETTLING: Duration = Duration::from_secs(10);
/// How often, and how many at a time, a settling node dials addresses that are not active members.
pub(super) const DIAL_QUICK: (Duration, usize) = (Duration::from_millis(500), 3);
/// The same for a settled node, for ever: whatever is dead, one packet a second leaves for it, and a
/// list of n dead is through in n seconds.
pub(super) const DIAL_SLOW: (Duration, usize) = (Duration::from_secs(1), 1);
/// How often a settling node compares its list with somebody else's.
pub(super) const COMPARE_QUICK: Duration = Duration::from_secs(1);
/// The same for a settled node.
pub(super) const COMPARE_SLOW: Duration = Duration::from_secs(10);
/// Most packets that answer one comparison: some 600 members. A longer list goes in turns.
pub(super) const COMPARE_PACKETS_MAX: usize = 8;

/// The longest round trip, in milliseconds, that the time-outs of `lan` are made for: half as much is left of the time
/// for a direct answer, and an indirect one finds room in the rest of the period.
const ROUND_TRIP_MS: u32 = 100;
/// By how much longer ways may stretch the time-outs of a preset: up to a round trip of 600 ms with `lan`.
const STRETCH_PERCENT_MAX: u32 = 600;

/// Time-outs of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    slower: u32,
    /// Hundred, or more because a member is far away.
    stretch_percent: u32,
}

impl Pace {
    pub(super) fn new(preset: GossipPreset) -> Self {
        let slower = match preset {
            GossipPreset::Lan => 1,
            GossipPreset::Wan => 6,
        };
        Self { slower, stretch_percent: 100 }
    }

    /// Makes room for answers that take this long.
    pub(super) fn allow_for(&mut self, round_trip: Duration) {
        let millis = u32::try_from(round_trip.as_millis()).unwrap_or(u32::MAX);
        let percent = millis.saturating_mul(100) / (ROUND_TRIP_MS * self.slower);
        self.stretch_percent = percent.clamp(100, STRETCH_PERCENT_MAX);
    }

    /// A time-out of the preset, with that room.
    pub(super) fn stretched(self, time_out: Duration) -> Duration {
        time_out * self.stretch_percent / 100
    }

    /// How long a suspicion must stand in a cluster of this size: longer for more members, in steps
    /// that no rounding can move, because news of it and of its refutation take longer.
    pub(super) fn suspect_for(self, members: usize) -> Duration {
        let suspect = Duration::from_millis(match members {
            0..=10 => 2_000,
            11..=31 => 3_000,
            32..=100 => 4_000,
            _ => 5_000,
        });
        self.stretched(suspect * self.slower)
    }

    /// What foca is told. It dials nobody of its own accord: see [`super::Membership`]'s `dial`. The
    /// dead are never forgotten: an address has one entry, whatever its generations, so that memory is
    /// bounded by the number of addresses, and forgetting on one node only would bring ghosts back.
    pub(super) fn config(self) -> foca::Config {
        let size = |number: usize| NonZeroUsize::new(number).expect("a constant that is not zero");
        let gossip_every = Duration::from_millis(100) * self.slower;
        foca::Config {
            probe_period: Duration::from_millis(500) * self.slower,
            probe_rtt: Duration::from_millis(150) * self.slower,
            num_indirect_probes: size(3),
            max_transmissions: NonZeroU8::new(15).expect("fifteen"),
            suspect_to_down_after: self.suspect_for(1),
            remove_down_after: None,
            max_packet_size: size(FOCA_BYTES_MAX),
            notify_down_members: true,
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams { frequency: gossip_every, num_members: size(3) }),
        }
    }
}
