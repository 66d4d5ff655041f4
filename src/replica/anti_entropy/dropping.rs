//! What may go because all owners have it: partitions of others, and old marks of removals.

use super::{Scene, State};
use crate::metrics::Metric;
use crate::time::Duration;
use std::collections::BTreeSet;

/// Agreement is not claimed for what was written this shortly before it was seen: clocks differ.
const AGREE_MARGIN: Duration = Duration::from_secs(5);

impl State {
    /// Partitions that are held and not owned: left over from another layout, or from standing in.
    pub(super) fn find_strays(&mut self, scene: &mut Scene<'_>) {
        let held = scene.replica.partitions_held();
        let strays: BTreeSet<u16> =
            held.into_iter().filter(|partition| !self.owned.contains(partition)).collect();
        if strays != self.strays {
            self.strays = strays;
            self.make_items(scene);
        }
        let strays: Vec<u16> = self.strays.iter().copied().collect();
        for partition in strays {
            let root = scene.replica.digest(partition).root();
            let covers = |owner: u16| {
                let partner = self.partners.get(&scene.view.member(owner).id);
                let item = partner.and_then(|partner| partner.items.get(&partition));
                item.is_some_and(|item| item.covered == Some(root)) && scene.is_usable(owner)
            };
            let owners = scene.view.primaries(partition);
            if !owners.is_empty() && owners.iter().all(|owner| covers(*owner)) {
                scene.replica.forget_partition(partition);
                scene.outbox.count(Metric::PartitionsForgotten);
            }
        }
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
