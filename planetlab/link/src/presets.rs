//! Networks to start from.
//!
//! What is measured and what is assumed is said by each ([`Preset::about`]). Delays between sites are half of the measured median
//! round-trip time; everything about loss and jitter is an assumption, because clouds lose so little that no test would see it.

use crate::settings::{Jitter, Loss, Settings};
use crate::sites::{self, Site};
use std::time::Duration;

/// One way between two machines of one site: an assumption.
const WITHIN_SITE: Duration = Duration::from_micros(250);

/// A network by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// One room.
    Lan,
    /// Sites in the United States.
    Us,
    /// All 25 sites.
    Global25,
    /// All 25 sites, as bad as the research networks of old.
    PlanetlabLike,
    /// One room in which everything goes wrong at times.
    Flaky,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Lan, Self::Us, Self::Global25, Self::PlanetlabLike, Self::Flaky];

    /// Its name in files and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lan => "lan",
            Self::Us => "us",
            Self::Global25 => "global25",
            Self::PlanetlabLike => "planetlab-like",
            Self::Flaky => "flaky",
        }
    }

    /// The preset with this name.
    ///
    /// # Errors
    /// There is none; the names of those that there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| {
            format!("there is no preset '{name}'; allowed: {}", Self::ALL.map(Self::name).join(", "))
        })
    }

    /// What it is, what of it is measured, and what is assumed.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Lan => "one room: 0.1 ms, and up to as much again (assumed)",
            Self::Us => {
                "5 sites in the United States, measured round-trip times (Azure, 2026-07-30); no loss"
            }
            Self::Global25 => "25 sites, measured round-trip times (Azure, 2026-07-30); no loss",
            Self::PlanetlabLike => {
                "25 sites, measured round-trip times (Azure, 2026-07-30) and their spread as a slow offset; ASSUMED: \
                 lognormal jitter of 2 ms (median), 0.55 % loss, most of it in bursts of 5 packets on average"
            }
            Self::Flaky => {
                "one room; ASSUMED: 5 % loss, 2 % doubled, 5 % overtaken, 0.1 % damaged, up to 5 ms of jitter"
            }
        }
    }

    /// Its sites; none when it has no places.
    #[must_use]
    pub fn sites(self) -> Vec<&'static Site> {
        match self {
            Self::Lan | Self::Flaky => Vec::new(),
            Self::Us => sites::all().iter().filter(|site| site.place.ends_with(", US")).collect(),
            Self::Global25 | Self::PlanetlabLike => sites::all().iter().collect(),
        }
    }

    /// Whether the slow offset is there unless a scenario says otherwise.
    #[must_use]
    pub fn drifts(self) -> bool {
        self == Self::PlanetlabLike
    }

    /// A link inside a site, or of a network without sites.
    #[must_use]
    pub fn base(self) -> Settings {
        const PERCENT: u32 = 10_000;
        let room = Settings {
            delay: Duration::from_micros(100),
            jitter: Jitter::Uniform(Duration::from_micros(100)),
            ..Settings::default()
        };
        let site = Settings { delay: WITHIN_SITE, ..Settings::default() };
        match self {
            Self::Lan => room,
            Self::Flaky => Settings {
                jitter: Jitter::Uniform(Duration::from_millis(5)),
                loss: Loss::Each(5 * PERCENT),
                duplicate: 2 * PERCENT,
                reorder: 5 * PERCENT,
                reorder_by: Duration::from_millis(20),
                corrupt: PERCENT / 10,
                ..room
            },
            Self::Us | Self::Global25 | Self::PlanetlabLike => site,
        }
    }

    /// The link from one site to another.
    #[must_use]
    pub fn between(self, from: &str, to: &str, drifts: bool) -> Settings {
        let base = self.base();
        let Some((p50, p95)) = sites::rtt(from, to) else { return base };
        let drift = if drifts { p95.saturating_sub(p50) / 2 } else { Duration::ZERO };
        let far = Settings { delay: p50 / 2, drift, ..base };
        if self == Self::PlanetlabLike {
            // Bad for 1,000 / (1,000 + 200,000) = 0.5 % of the time, and 0.05 % at other times.
            let loss = Loss::Gilbert { worsens: 1_000, mends: 200_000, bad: 1_000_000, good: 500 };
            return Settings { jitter: Jitter::Lognormal(Duration::from_millis(2)), loss, ..far };
        }
        far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_found_by_name_and_others_refused() {
        for preset in Preset::ALL {
            assert_eq!(Preset::parse(preset.name()), Ok(preset));
            assert!(!preset.about().is_empty());
        }
        let error = Preset::parse("mars").expect_err("there is none");
        assert_eq!(error, "there is no preset 'mars'; allowed: lan, us, global25, planetlab-like, flaky");
        assert_eq!((Preset::Us.sites().len(), Preset::Global25.sites().len()), (5, 25));
    }

    #[test]
    fn one_way_is_half_of_the_median() {
        let link = Preset::Global25.between("westus2", "westus", false);
        assert_eq!(
            (link.delay, link.drift, link.loss),
            (Duration::from_millis(12), Duration::ZERO, Loss::Each(0))
        );
        let link = Preset::PlanetlabLike.between("westus2", "westus", true);
        assert_eq!((link.delay, link.drift), (Duration::from_millis(12), Duration::from_micros(500)));
        assert_eq!(Preset::PlanetlabLike.between("westus", "westus", true), Preset::PlanetlabLike.base());
    }
}
