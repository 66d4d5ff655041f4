//! The rules in force: what links begin as, what was changed since, and what is cut.
//!
//! A short list, which a link looks through when anything in it has changed, and not for every packet.

use crate::link::Link;
use crate::roster::{Endpoint, Ends};
use crate::settings::{Change, Settings};
use std::collections::BTreeMap;

/// How many changes there may be in force at once.
const CHANGES_MAX: usize = 10_000;

#[derive(Debug)]
struct Rule {
    from: Ends,
    to: Ends,
    change: Change,
}

#[derive(Debug)]
pub(crate) struct Rules {
    base: Settings,
    /// Links that begin with other settings.
    laid: BTreeMap<(Endpoint, Endpoint), Settings>,
    changes: Vec<Rule>,
    delay_scale: f64,
    cuts: Vec<(Ends, Ends)>,
    /// Counts what was done to all of these.
    revision: u64,
}

impl Rules {
    pub(crate) fn new(base: Settings) -> Self {
        let (laid, changes, cuts) = (BTreeMap::new(), Vec::new(), Vec::new());
        // A new link has seen no revision yet.
        Self { base, laid, changes, delay_scale: 1.0, cuts, revision: 1 }
    }

    /// Brings a link up to date.
    pub(crate) fn refresh(&self, link: &mut Link, from: Endpoint, to: Endpoint) {
        if link.revision == self.revision {
            return;
        }
        let mut settings = *self.laid.get(&(from, to)).unwrap_or(&self.base);
        let meant = self.changes.iter().filter(|rule| rule.from.contains(from) && rule.to.contains(to));
        meant.for_each(|rule| settings.apply(&rule.change));
        settings.delay = settings.delay.mul_f64(self.delay_scale);
        link.settings = settings;
        link.is_cut = self.is_cut(from, to);
        link.revision = self.revision;
    }

    /// What an end sends to itself is on no wire.
    pub(crate) fn is_cut(&self, from: Endpoint, to: Endpoint) -> bool {
        from != to && self.cuts.iter().any(|(some, others)| some.contains(from) && others.contains(to))
    }

    pub(crate) fn base(&self) -> Settings {
        self.base
    }

    pub(crate) fn set_base(&mut self, base: Settings) {
        self.base = base;
        self.revision += 1;
    }

    pub(crate) fn lay(&mut self, from: Endpoint, to: Endpoint, settings: Settings) {
        self.laid.insert((from, to), settings);
        self.revision += 1;
    }

    pub(crate) fn change(&mut self, from: &Ends, to: &Ends, change: &Change) -> Result<(), String> {
        let is_replaced = |rule: &Rule| rule.from == *from && rule.to == *to && change.covers(&rule.change);
        self.changes.retain(|rule| !is_replaced(rule));
        self.revision += 1;
        if CHANGES_MAX <= self.changes.len() {
            return Err(format!(
                "{CHANGES_MAX} changes are in force, which is the most; 'reset' undoes them"
            ));
        }
        self.changes.push(Rule { from: from.clone(), to: to.clone(), change: change.clone() });
        Ok(())
    }

    pub(crate) fn scale_delays(&mut self, factor: f64) {
        self.delay_scale = factor;
        self.revision += 1;
    }

    pub(crate) fn reset(&mut self) {
        self.changes.clear();
        self.delay_scale = 1.0;
        self.revision += 1;
    }

    pub(crate) fn cut(&mut self, from: &Ends, to: &Ends) {
        let cut = (from.clone(), to.clone());
        if !self.cuts.contains(&cut) {
            self.cuts.push(cut);
            self.revision += 1;
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
        self.revision += 1;
    }
}
