//! How a load is done, as plain data: [`PhasePlan`] as it stands in a plan file, [`Plan`] for callers with a workload
//! of their own, [`Conduct`] as the engine takes it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use violet_client::Format;
use violet_client::wire::MESSAGE_BYTES_MAX;

use super::schedule::Schedule;
use crate::result::{Arrivals, Loop};
use crate::workload::{KeyOrder, Mix, Route};

/// Most logical clients or requests under way of one load; ids have room for them, and so has memory.
pub const IN_FLIGHT_MAX: usize = 1 << 20;
/// Requests under way of an open loop unless something else is asked for.
pub const IN_FLIGHT_USUAL: usize = 1 << 16;
/// Rates beyond this are a slip of the pen.
const RATE_MAX: f64 = 1e7;

/// One load at one setting, on numbered keys. All fields have defaults, so a plan file says only what differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PhasePlan {
    /// What it is called in the result.
    pub name: String,
    /// What repeats of one setting have in common; the name if empty.
    pub group: String,
    /// Open loop: requests a second. Not together with `clients`.
    pub rate: Option<f64>,
    /// How the times of an open loop lie.
    pub arrivals: Arrivals,
    /// Closed loop: logical clients.
    pub clients: Option<usize>,
    /// How long requests fall due. A `fill` or `read-all` ends with its keys, and takes no time limit if this is zero.
    pub seconds: f64,
    /// Seconds of the same load before that count for nothing.
    pub warm_up: f64,
    /// What is done with the keys.
    pub work: Work,
    /// Shares of operations, as `get:95,put:5`; for the work `mix`.
    pub mix: Mix,
    /// Which keys are asked for, as `uniform`, `sequential`, `zipf:0.99`, `hot:90:10`, `absent`.
    pub key_order: KeyOrder,
    /// Who is asked: `first`, `random`, `zero-hop`.
    pub route: Route,
    /// Milliseconds that each try waits for an answer; as many tries as there are numbers.
    pub waits_ms: Vec<u64>,
    /// Requests under way at which an open loop skips.
    pub in_flight_max: usize,
    /// How often a closed loop asks again after "overloaded", each time after the wait that the server names.
    pub overload_restarts: u32,
}

impl Default for PhasePlan {
    fn default() -> Self {
        Self {
            name: "load".to_owned(),
            group: String::new(),
            rate: None,
            arrivals: Arrivals::Poisson,
            clients: None,
            seconds: 10.0,
            warm_up: 1.0,
            work: Work::Mix,
            mix: Mix::default(),
            key_order: KeyOrder::Uniform,
            route: Route::Random,
            waits_ms: vec![100, 200, 400, 800],
            in_flight_max: IN_FLIGHT_USUAL,
            overload_restarts: 0,
        }
    }
}

/// What is done with the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Operations are drawn from the mix, keys in the key order, until the time is up.
    #[default]
    Mix,
    /// Every key is put once, in a closed loop again until it is acknowledged.
    Fill,
    /// Every key is read once and judged.
    ReadAll,
}

impl PhasePlan {
    /// A filling by this many clients.
    pub fn fill(clients: usize) -> Self {
        Self {
            name: "fill".to_owned(),
            clients: Some(clients),
            seconds: 0.0,
            warm_up: 0.0,
            work: Work::Fill,
            overload_restarts: 1_000,
            ..Self::default()
        }
    }

    /// How requests are timed.
    ///
    /// # Errors
    /// One sentence, when neither or both of rate and clients are given, or one is out of its range.
    pub fn timing(&self) -> Result<Loop, String> {
        let place = &self.name;
        match (self.rate, self.clients) {
            (Some(rate), None) if 0.0 < rate && rate <= RATE_MAX => {
                Ok(Loop::Open { rate, arrivals: self.arrivals })
            }
            (Some(rate), None) => {
                Err(format!("{place}: rate {rate} is not above 0 and at most {RATE_MAX} a second"))
            }
            (None, Some(clients)) if 0 < clients && clients <= IN_FLIGHT_MAX => Ok(Loop::Closed { clients }),
            (None, Some(clients)) => Err(format!("{place}: clients {clients} are not 1 to {IN_FLIGHT_MAX}")),
            (None, None) => Err(format!("{place}: say either rate (open loop) or clients (closed loop)")),
            (Some(_), Some(_)) => Err(format!("{place}: rate and clients exclude each other")),
        }
    }

    /// Whether everything is in its range and fits together.
    ///
    /// # Errors
    /// One sentence that names the phase, the field and what would be right.
    pub fn check(&self) -> Result<(), String> {
        self.timing()?;
        let place = &self.name;
        let day = 0.0..=86_400.0;
        if !day.contains(&self.seconds) || (self.work == Work::Mix && self.seconds == 0.0) {
            return Err(format!("{place}: seconds {} are not above 0 and at most a day", self.seconds));
        }
        if !day.contains(&self.warm_up) {
            return Err(format!("{place}: warm-up {} is not 0 to 86400 seconds", self.warm_up));
        }
        if self.waits_ms.is_empty() || 16 < self.waits_ms.len() || self.waits_ms.contains(&0) {
            return Err(format!("{place}: waits-ms are 1 to 16 numbers above 0, one for each try"));
        }
        if self.in_flight_max == 0 || IN_FLIGHT_MAX < self.in_flight_max {
            return Err(format!("{place}: in-flight-max {} is not 1 to {IN_FLIGHT_MAX}", self.in_flight_max));
        }
        if self.key_order == KeyOrder::Absent && self.work == Work::Mix && !self.mix.is_get_only() {
            return Err(format!(
                "{place}: absent keys can only be read: give mix get:100 with key-order absent"
            ));
        }
        Ok(())
    }

    /// What repeats have in common.
    pub fn group(&self) -> &str {
        if self.group.is_empty() { &self.name } else { &self.group }
    }
}

/// A closed loop with a workload of the caller's.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom to ask; calls name an index.
    pub servers: Vec<SocketAddr>,
    /// The protocol generation.
    pub format: Format,
    /// How long each attempt waits; their number is the number of attempts.
    pub waits: Vec<Duration>,
    /// Logical clients in this thread.
    pub clients: usize,
    /// How long a client rests between an answer and its next request; zero for a closed loop.
    pub rest: Duration,
    /// When clients stop starting requests; without it they go on until the workload ends them.
    pub window: Option<Duration>,
    /// After "overloaded", how often a client waits and asks again before that counts as the answer.
    pub overload_restarts_max: u32,
    /// Whether such a restart draws a new server, as the 2019 clients do.
    pub redraw_server: bool,
    /// Seed of those draws.
    pub seed: u64,
}

/// When requests are made.
#[derive(Clone, Debug)]
pub enum Pace {
    /// By clients, each of which asks when it is answered.
    Closed {
        /// How many.
        clients: usize,
        /// How long each rests after an answer.
        rest: Duration,
    },
    /// At the times of a schedule.
    Open {
        /// The times.
        schedule: Schedule,
        /// Requests under way at which slots are skipped.
        in_flight_max: usize,
    },
}

/// What one engine does.
#[derive(Clone, Debug)]
pub struct Conduct {
    /// Whom to ask; calls name an index.
    pub servers: Vec<SocketAddr>,
    /// The protocol generation.
    pub format: Format,
    /// How long each attempt waits.
    pub waits: Vec<Duration>,
    /// When requests are made.
    pub pace: Pace,
    /// Requests that begin or fall due before this count for nothing.
    pub warm_up: Duration,
    /// For how long after it requests begin or fall due; without it the workload ends the run.
    pub window: Option<Duration>,
    /// See [`Plan::overload_restarts_max`].
    pub overload_restarts_max: u32,
    /// See [`Plan::redraw_server`].
    pub redraw_server: bool,
    /// Of those draws.
    pub seed: u64,
    /// Longest reply that is to be taken whole.
    pub reply_bytes_max: usize,
}

impl From<&Plan> for Conduct {
    fn from(plan: &Plan) -> Self {
        Self {
            servers: plan.servers.clone(),
            format: plan.format,
            waits: plan.waits.clone(),
            pace: Pace::Closed { clients: plan.clients, rest: plan.rest },
            warm_up: Duration::ZERO,
            window: plan.window,
            overload_restarts_max: plan.overload_restarts_max,
            redraw_server: plan.redraw_server,
            seed: plan.seed,
            reply_bytes_max: MESSAGE_BYTES_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_cannot_be_run_say_why() {
        let rated = PhasePlan { rate: Some(10.0), ..PhasePlan::default() };
        rated.check().unwrap();
        PhasePlan::fill(4).check().unwrap();
        for (plan, expected) in [
            (PhasePlan::default(), "say either rate"),
            (PhasePlan { clients: Some(1), ..rated.clone() }, "exclude each other"),
            (PhasePlan { rate: Some(0.0), ..rated.clone() }, "rate 0"),
            (PhasePlan { rate: Some(f64::NAN), ..rated.clone() }, "rate NaN"),
            (PhasePlan { rate: None, clients: Some(0), ..rated.clone() }, "clients 0"),
            (PhasePlan { seconds: 0.0, ..rated.clone() }, "seconds 0"),
            (PhasePlan { warm_up: -1.0, ..rated.clone() }, "warm-up -1"),
            (PhasePlan { waits_ms: vec![], ..rated.clone() }, "waits-ms"),
            (PhasePlan { in_flight_max: 0, ..rated.clone() }, "in-flight-max 0"),
            (PhasePlan { key_order: KeyOrder::Absent, ..rated.clone() }, "get:100"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(error.contains(expected) && error.starts_with("load: "), "{error}");
        }
    }

    #[test]
    fn a_plan_says_only_what_differs() {
        let plan: PhasePlan =
            serde_json::from_str(r#"{"rate": 100.0, "mix": "put:1,get:3", "key-order": "zipf:0.9"}"#)
                .unwrap();
        assert_eq!(plan.key_order, KeyOrder::Zipf { theta: 0.9 });
        let again: PhasePlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(again, plan);
        assert!(serde_json::from_str::<PhasePlan>(r#"{"ratte": 1}"#).is_err());
    }
}
