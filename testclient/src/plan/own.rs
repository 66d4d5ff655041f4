//! Loads of this process: an order becomes a plan of the load engine, and the keys that it is about are kept from one
//! phase to the next with what is known of each.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use super::conformance;
use super::loader::{CheckOrder, Checked, Loader, Order, Work};
use crate::grid::{self, Asked, Cell, GridPlan};
use crate::interrupt::Stop;
use crate::load::{self, Glimpse, Observer, PhasePlan};
use crate::names::KeyNames;
use crate::result::{Loop, Phase};
use crate::values::{Contents, Random};
use crate::workload::{KeyOrder, Keys, Route, Target};

/// How often a bulk load asks again after "overloaded".
const OVERLOAD_RESTARTS: u32 = 1_000;

/// Makes loads here.
#[derive(Default)]
pub struct OwnLoader {
    /// By what tells them from one another; the keys of two sets are different keys.
    sets: BTreeMap<String, Keys>,
    /// How often everything was forgotten. Keys are named anew each time: what is still there of the old ones, or lost,
    /// says nothing about the new ones.
    generation: u32,
    faults: Vec<String>,
    remarks: Vec<String>,
}

impl OwnLoader {
    /// The keys that an order is about.
    fn keys(&mut self, order: &Order) -> Result<&mut Keys, String> {
        let settings = &order.settings;
        let count =
            usize::try_from(settings.keys).map_err(|_| format!("keys {}: too many", settings.keys))?;
        let threads = settings.threads.min(count);
        let name = format!(
            "{} {} {count} {} {} {} {threads}",
            order.keys_seed,
            self.generation,
            settings.key_bytes,
            settings.value_bytes,
            settings.format.word()
        );
        let target = Target { servers: order.servers.clone(), format: settings.format.format() };
        if !self.sets.contains_key(&name) {
            let own_seed =
                name.bytes().fold(order.keys_seed, |seed, byte| Random::new(seed ^ u64::from(byte)).next());
            let contents = Contents::new(own_seed, settings.value_bytes.load()?);
            let names = KeyNames::new(order.mark, own_seed, settings.key_bytes);
            let keys = Keys::new(target.clone(), count, contents, names, own_seed, threads)?;
            self.sets.insert(name.clone(), keys);
        }
        let keys = self.sets.get_mut(&name).expect("it was put in above if it was not there");
        // Servers come and go while a plan runs.
        keys.target = target;
        Ok(keys)
    }

    /// The graders' loop, or this process's share of it.
    fn put_get(&mut self, order: &Order, same_key: bool, observer: Observer<'_>) -> Result<Phase, String> {
        let Loop::Closed { clients } = order.timing else {
            return Err(format!("{}: the graders' loop is a closed one", order.name));
        };
        let settings = &order.settings;
        let plan = GridPlan {
            servers: order.servers.clone(),
            format: settings.format.format(),
            window: Duration::from_secs_f64(settings.seconds),
            sizes: settings.value_bytes.load()?,
            threads: settings.threads,
            // Each cell has keys of its own, should the servers not have been emptied before it.
            names: KeyNames::new(order.mark, order.keys_seed ^ order.seed, settings.key_bytes),
            same_key,
            seed: order.seed,
        };
        let asked = match settings.route {
            Route::First => Asked::First,
            Route::Random => Asked::Random,
            Route::ZeroHop => Asked::Holder,
        };
        let result = grid::run_cell(&plan, Cell { asked, clients }, observer)?;
        (self.faults, self.remarks) = (result.faults(), result.remarks());
        Ok(result.phase(&order.name, &order.group, &plan.servers))
    }
}

impl Loader for OwnLoader {
    fn load(&mut self, order: &Order, stop: &Stop, watch: &mut dyn FnMut(&Glimpse)) -> Result<Phase, String> {
        let mut observer = |glimpse: &Glimpse| {
            watch(glimpse);
            if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if let Work::PutGet { same_key } = order.work {
            return self.put_get(order, same_key, &mut observer);
        }
        let keys = self.keys(order)?;
        let phase = load::run_phase(&phase_plan(order), keys, &mut observer)?;
        let faults = keys.take_faults();
        self.faults = faults.first.into_values().collect();
        self.remarks.clear();
        Ok(phase)
    }

    fn check(
        &mut self,
        order: &CheckOrder,
        stop: &Stop,
        tell: &mut dyn FnMut(Checked),
    ) -> Result<(), String> {
        conformance::carry_out(order, stop, tell)
    }

    fn forget(&mut self) {
        self.sets.clear();
        self.generation += 1;
    }

    fn faults(&mut self) -> Vec<String> {
        std::mem::take(&mut self.faults)
    }

    fn remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }
}

fn phase_plan(order: &Order) -> PhasePlan {
    let settings = &order.settings;
    let (rate, clients) = match order.timing {
        Loop::Open { rate, .. } => (Some(rate), None),
        Loop::Closed { clients } => (None, Some(clients)),
    };
    let mixed = PhasePlan {
        name: order.name.clone(),
        group: order.group.clone(),
        rate,
        arrivals: settings.arrivals,
        clients,
        seconds: settings.seconds,
        warm_up: settings.warm_up,
        work: load::Work::Mix,
        mix: settings.mix,
        key_order: settings.key_order,
        route: settings.route,
        waits_ms: settings.waits_ms.clone(),
        in_flight_max: settings.in_flight_max,
        overload_restarts: 0,
    };
    match order.work {
        // The graders' loop makes plans of its own.
        Work::Mixed | Work::PutGet { .. } => mixed,
        // Every key once, and every one counts; the phase ends when all are stored.
        Work::Fill => PhasePlan {
            seconds: 0.0,
            warm_up: 0.0,
            work: load::Work::Fill,
            key_order: KeyOrder::Sequential,
            overload_restarts: OVERLOAD_RESTARTS,
            ..mixed
        },
    }
}
