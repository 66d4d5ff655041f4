//! From when on comparisons count, and when a partition that is this node's own has been filled.

use super::{Scene, State, living, standing_of};
use crate::time::Duration;

/// Members that do not come to use the same layout are not waited for longer than this.
const CONFIRM_WITHIN: Duration = Duration::from_secs(10);

impl State {
    /// Looks whether every living member uses the layout in force; sets from when on comparisons count.
    pub(super) fn follow_confirmations(&mut self, scene: &Scene<'_>, stale_after: Duration) -> bool {
        let uses_it = |member: u16| standing_of(scene, member).layout == scene.view.layout();
        let confirmed = living(scene).all(uses_it);
        if self.since.is_some() {
            return confirmed;
        }
        let calm = scene.view.is_settled() && living(scene).all(|member| standing_of(scene, member).settled);
        if confirmed && calm {
            // Nothing has changed but that this node was away.
            self.since = Some(scene.fence.round().1);
        } else if confirmed {
            // What was sent by an older layout arrives by then, or is refused.
            self.since = Some(scene.now + stale_after);
        } else if CONFIRM_WITHIN <= scene.now.since(self.basis_at) {
            self.since = Some(scene.now);
        }
        confirmed
    }

    pub(super) fn filling<'a>(&'a self, scene: &'a Scene<'_>) -> impl Iterator<Item = u16> + 'a {
        self.sure.iter().copied().filter(|partition| scene.fence.is_filling(*partition))
    }

    pub(super) fn end_fillings(&self, scene: &Scene<'_>) {
        let Some(since) = self.since.filter(|_| scene.fence.is_active()) else { return };
        let (round, _) = scene.fence.round();
        for partition in self.filling(scene) {
            let mut wiped_at = None;
            let is_verified =
                scene.other_owners(partition).filter(|owner| scene.is_usable(*owner)).all(|owner| {
                    let partner = self.partners.get(&scene.view.member(owner).id);
                    let item = partner.and_then(|partner| partner.items.get(&partition));
                    let item = item.filter(|item| since <= item.verified_at);
                    let Some(item) = item else { return false };
                    wiped_at = Some(wiped_at.map_or(item.wiped_at, |least: u64| least.min(item.wiped_at)));
                    true
                });
            if is_verified {
                let wiped_at = wiped_at.filter(|at| scene.fence.away_since().as_nanos() <= *at);
                if let Some(wiped_at) = wiped_at {
                    // All others were wiped while this node was away: so it would have been.
                    scene.replica.forget_until(partition, wiped_at);
                }
                if scene.view.was_given_up(partition, |owner| scene.is_usable(owner)) {
                    scene.fence.note_orphan(partition);
                }
                scene.fence.end_filling(round, partition);
            }
        }
    }
}
