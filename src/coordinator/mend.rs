//! Read repair: a read that finds a replica without a record, or with an older one, has it mended.
//!
//! The front end hears from several replicas only now and then, so this is a by-product: what nobody reads, and
//! what nobody notices, is found by anti-entropy. The member that holds the newest record sends it on, because the
//! front end has no value in its hands. There is a budget: a replica that lost everything must not turn
//! every read into a write.

use super::read_op::{Known, ReadOp};
use super::{Coordinator, Few, Turn};
use crate::ids::{MemberId, RequestKey, Version};
use crate::metrics::Metric;
use crate::peer::{Message, Write};
use crate::storage::Record;
use crate::time::{Duration, Instant};
use std::sync::atomic::Ordering;
use violet_client::Key;

/// Records that one front end has mended per second, and how many at once.
const MENDS_PER_S: u32 = 100;
const MENDS_AT_ONCE: u32 = 20;
const MEND_TAKES: Duration = Duration::from_nanos(1_000_000_000 / MENDS_PER_S as u64);

/// Who holds the newest record, and who needs it. A member that holds nothing needs no removal.
fn needed(known: &[Known]) -> Option<(MemberId, Few<MemberId>)> {
    let newest = *known.iter().max_by_key(|known| known.version)?;
    let lacks = |other: &&Known| {
        let is_older = other.primary && other.version < newest.version;
        is_older && !(other.removed && newest.removed)
    };
    let lacking: Few<MemberId> = known.iter().filter(lacks).map(|other| other.member).collect();
    (!lacking.is_empty()).then_some((newest.member, lacking))
}

impl Coordinator {
    /// Has replicas mended that this read found behind the others; `answered` is who sent the value at last,
    /// and its version.
    pub(super) fn mend(&self, turn: &mut Turn<'_>, op: &ReadOp, answered: Option<(MemberId, Version)>) {
        let mut known: Few<Known> = op.known().collect();
        if let Some((member, version)) = answered {
            known.retain(|other| other.member != member);
            known.push(Known { member, primary: true, version, removed: false });
        }
        let Some((holder, lacking)) = needed(&known) else { return };
        for member in lacking {
            if !self.may_mend(turn.now) {
                turn.outbox.count(Metric::ReadRepairsSkipped);
                continue;
            }
            match turn.view.index_of(holder) {
                Some(to) if to == turn.view.me() => self.on_mend(turn, op.key(), member),
                Some(to) => {
                    let message = Message::Mend { key: op.key(), to: member };
                    self.link.send(turn.now, turn.view, to, &message, turn.outbox);
                }
                None => {}
            }
        }
    }

    /// Takes one from the budget. What is mended fills a time ahead of now; it must not be too far ahead.
    fn may_mend(&self, now: Instant) -> bool {
        let take = |until: u64| {
            let until = Instant::from_nanos(until).max(now) + MEND_TAKES;
            (until.since(now) <= MEND_TAKES * MENDS_AT_ONCE).then_some(until.as_nanos())
        };
        self.mended_until.try_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

impl Coordinator {
    /// A front end found a replica without a record that this node has.
    pub fn on_mend(&self, turn: &mut Turn<'_>, key: Key, to: MemberId) {
        let partition = Self::partition_of(turn, &key);
        let Some(to) = turn.view.index_of(to).filter(|to| turn.view.is_owner(partition, *to)) else { return };
        let mut bytes = Vec::new();
        let Some(record) = self.replica.read_record(partition, &key, &mut bytes) else { return };
        let Record { version, value, is_set } = record;
        let write = Write { key, version, value, is_set, request: RequestKey(0) };
        turn.outbox.count(Metric::ReadRepairs);
        self.link.send(turn.now, turn.view, to, &Message::Hint { write }, turn.outbox);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(id: u64, time: u64, removed: bool) -> Known {
        Known { member: MemberId(id), primary: true, version: Version { time, writer: 0 }, removed }
    }

    #[test]
    fn who_is_behind_is_mended_by_who_is_not() {
        let check = |all: &[Known], expected: Option<(u64, &[u64])>| {
            let expected = expected.map(|(holder, lacking)| {
                (MemberId(holder), lacking.iter().map(|id| MemberId(*id)).collect::<Few<_>>())
            });
            assert_eq!(needed(all), expected, "{all:?}");
        };
        let (new, old, nothing) = (known(1, 9, false), known(2, 5, false), known(3, 0, true));
        check(&[new, old, nothing], Some((1, &[2, 3])));
        check(&[new, Known { primary: false, ..old }], None);
        check(&[new], None);
        check(&[], None);
        check(&[nothing, known(4, 0, true)], None);
        let removal = known(1, 9, true);
        check(&[removal, old, nothing], Some((1, &[2])));
        check(&[removal, known(2, 5, true)], None);
    }
}
