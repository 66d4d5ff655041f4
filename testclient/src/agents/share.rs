//! Which part of a load each agent makes.

use crate::plan::{Order, Work};
use crate::result::Loop;
use crate::values::Random;

/// The share of an agent: `turn` of `present` decides how much it asks; `place` of `all` which keys are its own, and
/// that never changes, because only it knows what it has written. `None` if nothing is left for it.
pub fn share(order: &Order, turn: usize, present: usize, place: usize, all: usize) -> Option<Order> {
    let part = |whole: usize, turn: usize, of: usize| whole / of + usize::from(turn < whole % of);
    let mut share = order.clone();
    let keys = usize::try_from(order.settings.keys).unwrap_or(usize::MAX);
    // The graders' loop makes its keys itself.
    let needs_keys = !matches!(order.work, Work::PutGet { .. });
    share.settings.keys = part(keys, place, all) as u64;
    if needs_keys && share.settings.keys == 0 {
        return None;
    }
    share.keys_seed = Random::new(order.keys_seed ^ place as u64).next();
    share.seed = Random::new(order.seed ^ place as u64).next();
    share.settings.in_flight_max = part(order.settings.in_flight_max, turn, present).max(1);
    match &mut share.timing {
        Loop::Open { rate, .. } => *rate /= present as f64,
        Loop::Closed { clients } => {
            *clients = part(*clients, turn, present);
            if needs_keys {
                *clients = (*clients).min(share.settings.keys as usize);
            }
            if *clients == 0 {
                return None;
            }
        }
    }
    Some(share)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::names::Mark;
    use crate::plan::{Settings, fake};

    /// A short phase of these clients, or of an open loop.
    pub fn order(clients: Option<usize>, keys: u64) -> Order {
        Order {
            name: "n".to_owned(),
            group: "g".to_owned(),
            timing: match clients {
                Some(clients) => Loop::Closed { clients },
                None => fake::phase(90.0, 1, 0).timing,
            },
            work: Work::Mixed,
            settings: Settings { keys, seconds: 0.1, ..Settings::default() },
            servers: Vec::new(),
            keys_seed: 1,
            mark: Mark::fresh(),
            seed: 2,
        }
    }

    #[test]
    fn shares_add_up_and_keys_stay_with_their_agent() {
        let clients = |turn| match share(&order(Some(5), 100), turn, 3, turn, 3) {
            Some(Order { timing: Loop::Closed { clients }, .. }) => clients,
            other => panic!("{other:?}"),
        };
        assert_eq!([clients(0), clients(1), clients(2)], [2, 2, 1]);
        assert_eq!(share(&order(Some(2), 100), 2, 3, 2, 3), None, "no client is left for it");
        let keys: u64 =
            (0..3).map(|place| share(&order(None, 100), place, 3, place, 3).unwrap().settings.keys).sum();
        assert_eq!(keys, 100);
        // The second agent of three, alone after the others were lost: more to ask, the same keys.
        let (before, after) =
            (share(&order(None, 100), 1, 3, 1, 3).unwrap(), share(&order(None, 100), 0, 1, 1, 3).unwrap());
        assert_eq!((before.keys_seed, before.settings.keys), (after.keys_seed, after.settings.keys));
        assert!(matches!(
            (before.timing, after.timing),
            (Loop::Open { rate: 30.0, .. }, Loop::Open { rate: 90.0, .. })
        ));
        assert_ne!(before.keys_seed, share(&order(None, 100), 0, 3, 0, 3).unwrap().keys_seed);
    }
}
