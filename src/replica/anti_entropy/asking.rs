//! What is asked at each tick: comparisons that are due, and pulls of what was found to differ.

use super::super::transfer::Pull;
use super::{ASK_AGAIN, ASK_AGAIN_SOON, Partner, Running, Scene, State};
use crate::metrics::Metric;
use crate::peer::{Message, Roots};
use crate::time::Instant;

/// Partitions in one datagram, and datagrams of one tick.
const ROOTS_PER_MESSAGE: usize = 120;
const MESSAGES_PER_TICK: usize = 48;
/// Partitions in one pull, and pulls at a time.
const PARTITIONS_PER_PULL: usize = 32;
const PULLS_MAX: usize = 4;

impl State {
    pub(super) fn send_compares(&mut self, scene: &mut Scene<'_>) {
        let mut messages = 0;
        for (member, partner) in &mut self.partners {
            let Some(index) = scene.view.index_of(*member).filter(|index| scene.is_usable(*index)) else {
                continue;
            };
            while partner.due <= scene.now && messages < MESSAGES_PER_TICK {
                let asked = partner.send_compare(scene, index);
                messages += usize::from(0 < asked);
                if asked < ROOTS_PER_MESSAGE {
                    let earliest = partner.items.values().map(|item| item.due).min();
                    partner.due = earliest.unwrap_or(Instant::FAR);
                    break;
                }
            }
        }
    }

    pub(super) fn begin_pulls(&mut self, scene: &mut Scene<'_>) {
        let mut running = self.partners.values().filter(|partner| partner.running.is_some()).count();
        for (member, partner) in &mut self.partners {
            if PULLS_MAX <= running {
                return;
            }
            let is_idle = partner.running.is_none() && partner.not_before <= scene.now;
            if !is_idle || partner.wanted.is_empty() {
                continue;
            }
            let Some(index) = scene.view.index_of(*member).filter(|index| scene.is_usable(*index)) else {
                continue;
            };
            let partitions: Vec<u16> = partner.wanted.iter().take(PARTITIONS_PER_PULL).copied().collect();
            partitions.iter().for_each(|partition| {
                partner.wanted.remove(partition);
            });
            let (pull, question) = Pull::begin(partitions);
            self.next_ticket += 1;
            running += 1;
            scene.outbox.count(Metric::RepairPulls);
            scene.outbox.ask_bulk(scene.view.member(index).address, *member, self.next_ticket, &question);
            let (ticket, generation) = (self.next_ticket, partner.generation);
            partner.running = Some(Running { ticket, generation, begun: scene.now, pull });
        }
    }
}

impl Partner {
    /// Asks about the items that are due, as many as fit a datagram; returns how many.
    fn send_compare(&mut self, scene: &mut Scene<'_>, index: u16) -> usize {
        let round_trip = scene.view.member(index).peer.round_trip();
        let mut roots = Vec::new();
        let mut asked = 0;
        let due = self.items.iter_mut().filter(|(_, item)| item.due <= scene.now);
        for (&partition, item) in due.take(ROOTS_PER_MESSAGE) {
            item.asked_at = scene.now;
            item.asked_root = scene.replica.digest(partition).root();
            let again = if scene.fence.is_filling(partition) { ASK_AGAIN_SOON } else { ASK_AGAIN };
            // A question that is asked anew before its answer can be here makes that answer worthless.
            item.due = scene.now + again + round_trip;
            Roots::push(&mut roots, partition, item.asked_root);
            asked += 1;
        }
        if 0 < asked {
            let (asked_at, wiped_at) = (scene.now.as_nanos(), scene.replica.wiped_at());
            let roots = Roots::over(&roots);
            scene.send(index, &Message::Compare { asked_at, wiped_at, roots });
        }
        asked
    }
}
