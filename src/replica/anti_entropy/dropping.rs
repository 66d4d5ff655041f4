//! What may go because all owners have it: partitions of others, and old marks of removals.

use super::{Scene, State};
use crate::metrics::Metric;
use crate::time::{Duration, Instant};
use std::collections::BTreeSet;

/// Agreement is not claimed for what was written this shortly before it was seen: clocks differ.
const AGREE_MARGIN: Duration = Duration::from_secs(5);

/// What all owners of a stray have said counts for this long: they may have died since.
const DROP_WITHIN: Duration = Duration::from_secs(1);

impl State {
    /// Partitions that are held and not owned: left over from another layout, or from standing in. When all
    /// their owners hold what is here they are asked once more, and what they confirm now may go.
    pub(super) fn find_strays(&mut self, scene: &mut Scene<'_>) {
        let held = scene.replica.partitions_held();
        let strays: BTreeSet<u16> =
            held.into_iter().filter(|partition| !self.owned.contains(partition)).collect();
        if strays != self.strays {
            self.strays = strays;
            self.make_items(scene);
        }
        let covered: Vec<u16> = self.covered_strays(scene, Instant::ZERO);
        for &partition in &covered {
            for owner in scene.view.primaries(partition) {
                let Some(partner) = self.partners.get_mut(&scene.view.member(*owner).id) else { continue };
                if let Some(item) = partner.items.get_mut(&partition) {
                    item.due = scene.now;
                    partner.due = scene.now;
                }
            }
        }
        if !covered.is_empty() {
            self.dropping_since = scene.now;
        }
    }

    /// Drops the strays that all their owners have confirmed since they were asked for the last time.
    pub(super) fn drop_strays(&self, scene: &mut Scene<'_>) {
        #[cfg(test)]
        if scene.replica.planted().strays_go_unasked {
            return self.strays.iter().for_each(|partition| scene.replica.forget_partition(*partition));
        }
        if DROP_WITHIN <= scene.now.since(self.dropping_since) {
            return;
        }
        for partition in self.covered_strays(scene, self.dropping_since) {
            scene.replica.forget_partition(partition);
            scene.outbox.count(Metric::PartitionsForgotten);
        }
    }

    /// Strays of which all owners hold everything, as each has said since then.
    fn covered_strays(&self, scene: &Scene<'_>, since: Instant) -> Vec<u16> {
        let is_covered = |partition: &u16| {
            let root = scene.replica.digest(*partition).root();
            let covers = |owner: &u16| {
                let partner = self.partners.get(&scene.view.member(*owner).id);
                let item = partner.and_then(|partner| partner.items.get(partition));
                let covered = item.and_then(|item| item.covered);
                let said = covered.is_some_and(|(of, at)| of == root && since < at);
                said && scene.is_usable(*owner)
            };
            let owners = scene.view.primaries(*partition);
            !owners.is_empty() && owners.iter().all(covers)
        };
        self.strays.iter().copied().filter(is_covered).collect()
    }

    /// Tells the engine up to when all owners are known to have held the same.
    pub(super) fn agree(&self, scene: &Scene<'_>) {
        if !scene.view.is_settled() {
            return;
        }
        for &partition in &self.owned {
            let equal_at = |owner: u16| {
                let partner = self.partners.get(&scene.view.member(owner).id)?;
                let item = partner.items.get(&partition)?;
                scene.is_usable(owner).then_some(item.equal_at)
            };
            let earliest = scene
                .other_owners(partition)
                .try_fold(scene.now, |earliest, owner| Some(earliest.min(equal_at(owner)?)));
            if let Some(at) = earliest {
                scene.replica.agree(partition, (at - AGREE_MARGIN).as_nanos());
            }
        }
    }
}
