//! Who makes the loads of a plan: this process, or agents on several machines.
//!
//! A plan orders a phase and gets its figures. What a maker of loads knows of the keys that it has written stays
//! with it from one phase to the next, so that later reads can be judged; after a wipe it has to forget it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::step::{FormatName, Settings};
use crate::interrupt::Stop;
use crate::load::Glimpse;
use crate::names::Mark;
use crate::result::{Check, Loop, Phase};

/// What the requests of a phase do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Work {
    /// Operations in the shares of the settings.
    Mixed,
    /// Every key is written once, in order; the phase ends when that is done.
    Fill,
    /// The graders' loop: a new key, read back and compared, and so on. Only in a closed loop.
    PutGet {
        /// Each client keeps to one key.
        same_key: bool,
    },
}

/// One phase, as it is ordered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Order {
    /// See [`Phase::name`].
    pub name: String,
    /// See [`Phase::group`].
    pub group: String,
    /// When requests leave.
    pub timing: Loop,
    /// What they do.
    pub work: Work,
    /// Everything else about them.
    pub settings: Settings,
    /// Whom to ask.
    pub servers: Vec<SocketAddr>,
    /// Of keys and values: equal in all phases that work on the same keys.
    pub keys_seed: u64,
    /// Of the run: what its keys have and those of no other run, whatever the seeds.
    pub mark: Mark,
    /// Of the draws of this phase.
    pub seed: u64,
}

/// Stages of `check`, as they are ordered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckOrder {
    /// The stages by name, in their order.
    pub stages: Vec<String>,
    /// Whom to ask.
    pub servers: Vec<SocketAddr>,
    /// In which generation of the protocol.
    pub format: FormatName,
    /// Of the draws.
    pub seed: u64,
    /// How much the stage `capacity` stores at most.
    pub capacity_mib: u64,
}

/// How stages of `check` go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Checked {
    /// Who runs them, if not this process.
    By {
        /// As a sentence names it.
        who: String,
    },
    /// A stage has begun.
    Begun {
        /// Its name.
        stage: String,
    },
    /// A stage has ended.
    Ended {
        /// What it says; `None` of one that does not apply here.
        check: Option<Check>,
        /// The same for a person.
        lines: Vec<String>,
    },
}

/// A maker of loads.
pub trait Loader {
    /// Makes a phase; shows its state from time to time. A phase that was stopped is returned as far as it got.
    ///
    /// # Errors
    /// One sentence, when it could not be made.
    fn load(&mut self, order: &Order, stop: &Stop, watch: &mut dyn FnMut(&Glimpse)) -> Result<Phase, String>;

    /// Runs stages of `check`, one after the other and from one place only: what one client sees is their subject.
    ///
    /// # Errors
    /// One sentence, when they could not be run to the end.
    fn check(&mut self, order: &CheckOrder, stop: &Stop, tell: &mut dyn FnMut(Checked))
    -> Result<(), String>;

    /// The servers were emptied: nothing that was written is there any more.
    fn forget(&mut self);

    /// What was wrong with answers of the last phase, one sentence each.
    fn faults(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// What a reader of the last phase should notice beside its figures, one sentence each.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Reasons why the figures are not whole, such as an agent that was lost.
    fn losses(&self) -> Vec<String> {
        Vec::new()
    }
}
