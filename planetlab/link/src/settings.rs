//! How good or bad one direction of a link is, and how that is written.
//!
//! `delay=20ms jitter=lognormal:2ms loss=gilbert:0.1%/25% rate=10Mbit queue=64KiB`: words of `key=value`, in any
//! order, each changing one thing. What [`Settings`] print as, [`Settings::parse_change`] reads.

use crate::units;
use std::time::Duration;
use std::{fmt, mem};

/// What a packet may take beyond the delay. Packets of a link keep their order whatever the jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Anything up to this, packet by packet.
    Uniform(Duration),
    /// Lognormal with this median, and with memory: packets that follow each other closely take about as long
    /// (the correlation falls to 1/e in [`Jitter::MEMORY`]).
    Lognormal(Duration),
}

impl Jitter {
    /// How long a lognormal jitter remembers. An assumption: queues of the wide area fill and empty within about
    /// this time.
    pub const MEMORY: Duration = Duration::from_millis(100);
    /// The standard deviation of its logarithm: one in twenty is 3.7 times the median. An assumption as well.
    pub const SIGMA: f64 = 0.8;
}

/// Which packets are lost. Chances are per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each by itself (Bernoulli).
    Each(u32),
    /// In bursts (Gilbert 1960, Elliott 1963): before every packet the link may turn bad or good.
    Gilbert {
        /// A good link turns bad.
        worsens: u32,
        /// A bad link turns good: one burst is a million over this long, on average.
        mends: u32,
        /// A packet is lost on a bad link.
        bad: u32,
        /// A packet is lost on a good link.
        good: u32,
    },
}

impl Loss {
    /// The share of all packets that is lost, per million, in the long run.
    #[must_use]
    pub fn average(self) -> u32 {
        match self {
            Self::Each(chance) => chance,
            Self::Gilbert { worsens, mends, bad, good } => {
                let [worsens, mends, bad, good] = [worsens, mends, bad, good].map(u64::from);
                // A link that never turns stays good.
                ((worsens * bad + mends * good) / (worsens + mends).max(1)) as u32
            }
        }
    }
}

/// One direction of a link. Chances are per million packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What every packet takes.
    pub delay: Duration,
    /// What it may take on top of that.
    pub jitter: Jitter,
    /// An offset on top of that, which changes within minutes: at zero half of the time, above this for one part in
    /// twenty.
    pub drift: Duration,
    /// Lost.
    pub loss: Loss,
    /// Arriving twice; the copy comes up to `reorder_by` later.
    pub duplicate: u32,
    /// Held back, so that later ones overtake it.
    pub reorder: u32,
    /// For how long it is held back at most.
    pub reorder_by: Duration,
    /// One bit flips.
    pub corrupt: u32,
    /// Bits a second, IP headers included; `None` is no limit.
    pub rate: Option<u64>,
    /// What may wait where a rate is limited; what does not fit is dropped.
    pub queue_bytes: u64,
    /// The longest IP packet.
    pub mtu: usize,
}

impl Default for Settings {
    /// A wire that does nothing to packets.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Jitter::Uniform(Duration::ZERO),
            drift: Duration::ZERO,
            loss: Loss::Each(0),
            duplicate: 0,
            reorder: 0,
            reorder_by: Duration::from_millis(2),
            corrupt: 0,
            rate: None,
            queue_bytes: 256 << 10,
            mtu: 1_500,
        }
    }
}

/// One `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Delay(Duration),
    Jitter(Jitter),
    Drift(Duration),
    Loss(Loss),
    Duplicate(u32),
    Reorder(u32),
    ReorderBy(Duration),
    Corrupt(u32),
    Rate(Option<u64>),
    Queue(u64),
    Mtu(usize),
}

/// What is to be changed, and to what; everything else stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change(Vec<Word>);

const KEYS: &str = "delay, jitter, drift, loss, duplicate, reorder, reorder-by, corrupt, rate, queue, mtu";

impl Settings {
    /// Reads words of `key=value`.
    ///
    /// # Errors
    /// The word that is wrong, and what is allowed.
    pub fn parse_change(text: &str) -> Result<Change, String> {
        let words: Result<Vec<Word>, String> = text.split_whitespace().map(Word::parse).collect();
        let words = words?;
        if words.is_empty() {
            return Err(format!("what is to change? Allowed: key=value, with the keys {KEYS}"));
        }
        Ok(Change(words))
    }

    /// Makes a change.
    pub fn apply(&mut self, change: &Change) {
        for word in &change.0 {
            match *word {
                Word::Delay(delay) => self.delay = delay,
                Word::Jitter(jitter) => self.jitter = jitter,
                Word::Drift(drift) => self.drift = drift,
                Word::Loss(loss) => self.loss = loss,
                Word::Duplicate(chance) => self.duplicate = chance,
                Word::Reorder(chance) => self.reorder = chance,
                Word::ReorderBy(time) => self.reorder_by = time,
                Word::Corrupt(chance) => self.corrupt = chance,
                Word::Rate(rate) => self.rate = rate,
                Word::Queue(bytes) => self.queue_bytes = bytes,
                Word::Mtu(bytes) => self.mtu = bytes,
            }
        }
    }

    fn words(&self) -> Vec<Word> {
        vec![
            Word::Delay(self.delay),
            Word::Jitter(self.jitter),
            Word::Drift(self.drift),
            Word::Loss(self.loss),
            Word::Duplicate(self.duplicate),
            Word::Reorder(self.reorder),
            Word::ReorderBy(self.reorder_by),
            Word::Corrupt(self.corrupt),
            Word::Rate(self.rate),
            Word::Queue(self.queue_bytes),
            Word::Mtu(self.mtu),
        ]
    }
}

impl Change {
    /// Whether it sets all that the other sets.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let has = |word: &Word| self.0.iter().any(|own| mem::discriminant(own) == mem::discriminant(word));
        other.0.iter().all(has)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Change(self.words()).fmt(f)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, word) in self.0.iter().enumerate() {
            let space = if place == 0 { "" } else { " " };
            write!(f, "{space}{word}")?;
        }
        Ok(())
    }
}

impl Word {
    fn parse(word: &str) -> Result<Self, String> {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("'{word}' is not key=value; the keys are {KEYS}"))?;
        let read = match key {
            "delay" => units::time(value).map(Self::Delay),
            "jitter" => jitter(value).map(Self::Jitter),
            "drift" => units::time(value).map(Self::Drift),
            "loss" => loss(value).map(Self::Loss),
            "duplicate" => units::chance(value).map(Self::Duplicate),
            "reorder" => units::chance(value).map(Self::Reorder),
            "reorder-by" => units::time(value).map(Self::ReorderBy),
            "corrupt" => units::chance(value).map(Self::Corrupt),
            "rate" => units::rate(value).map(Self::Rate),
            "queue" => units::size(value).map(Self::Queue),
            "mtu" => mtu(value).map(Self::Mtu),
            _ => return Err(format!("there is no '{key}'; the keys are {KEYS}")),
        };
        read.map_err(|why| format!("{key}: {why}"))
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use units::{show_chance, show_rate, show_size, show_time};
        match *self {
            Self::Delay(time) => write!(f, "delay={}", show_time(time)),
            Self::Jitter(Jitter::Uniform(most)) => write!(f, "jitter={}", show_time(most)),
            Self::Jitter(Jitter::Lognormal(median)) => write!(f, "jitter=lognormal:{}", show_time(median)),
            Self::Drift(time) => write!(f, "drift={}", show_time(time)),
            Self::Loss(Loss::Each(chance)) => write!(f, "loss={}", show_chance(chance)),
            Self::Loss(Loss::Gilbert { worsens, mends, bad, good }) => {
                let [worsens, mends, bad, good] = [worsens, mends, bad, good].map(show_chance);
                write!(f, "loss=gilbert:{worsens}/{mends}/{bad}/{good}")
            }
            Self::Duplicate(chance) => write!(f, "duplicate={}", show_chance(chance)),
            Self::Reorder(chance) => write!(f, "reorder={}", show_chance(chance)),
            Self::ReorderBy(time) => write!(f, "reorder-by={}", show_time(time)),
            Self::Corrupt(chance) => write!(f, "corrupt={}", show_chance(chance)),
            Self::Rate(rate) => write!(f, "rate={}", show_rate(rate)),
            Self::Queue(bytes) => write!(f, "queue={}", show_size(bytes)),
            Self::Mtu(bytes) => write!(f, "mtu={bytes}"),
        }
    }
}

/// `5ms` (anything up to it) or `lognormal:5ms` (the median).
fn jitter(text: &str) -> Result<Jitter, String> {
    match text.strip_prefix("lognormal:") {
        Some(median) => units::time(median).map(Jitter::Lognormal),
        None => units::time(text).map(Jitter::Uniform),
    }
}

/// `1%`, or `gilbert:WORSENS/MENDS[/LOSS WHEN BAD[/LOSS WHEN GOOD]]`.
fn loss(text: &str) -> Result<Loss, String> {
    let Some(chances) = text.strip_prefix("gilbert:") else {
        return units::chance(text).map(Loss::Each);
    };
    let chances: Result<Vec<u32>, String> = chances.split('/').map(units::chance).collect();
    match chances?[..] {
        [worsens, mends] => Ok(Loss::Gilbert { worsens, mends, bad: crate::dice::MILLION, good: 0 }),
        [worsens, mends, bad] => Ok(Loss::Gilbert { worsens, mends, bad, good: 0 }),
        [worsens, mends, bad, good] => Ok(Loss::Gilbert { worsens, mends, bad, good }),
        _ => Err(format!("'{text}' has not two to four chances; allowed: gilbert:WORSENS/MENDS/BAD/GOOD")),
    }
}

/// From what IPv4 demands of every host to what its length field can say.
fn mtu(text: &str) -> Result<usize, String> {
    let bytes = units::size(text).ok().filter(|bytes| (576..=65_535).contains(bytes));
    bytes.map(|bytes| bytes as usize).ok_or_else(|| format!("'{text}' is not allowed: 576 to 65535 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(text: &str) -> Settings {
        let mut settings = Settings::default();
        settings.apply(&Settings::parse_change(text).expect("it is allowed"));
        settings
    }

    #[test]
    fn words_change_what_they_name() {
        let settings = after("delay=20.5ms loss=1.5% rate=10Mbit queue=64KiB mtu=9000 jitter=lognormal:2ms");
        let wanted = Settings {
            delay: Duration::from_micros(20_500),
            loss: Loss::Each(15_000),
            rate: Some(10_000_000),
            queue_bytes: 65_536,
            mtu: 9_000,
            jitter: Jitter::Lognormal(Duration::from_millis(2)),
            ..Settings::default()
        };
        assert_eq!(settings, wanted);
        let gilbert = after("loss=gilbert:0.1%/25%").loss;
        assert_eq!(gilbert, Loss::Gilbert { worsens: 1_000, mends: 250_000, bad: 1_000_000, good: 0 });
    }

    #[test]
    fn a_wrong_word_is_named_with_what_is_allowed() {
        let error = |text| Settings::parse_change(text).expect_err("it is wrong");
        assert_eq!(error("delay=1ms los=1%"), format!("there is no 'los'; the keys are {KEYS}"));
        assert_eq!(error("fast"), format!("'fast' is not key=value; the keys are {KEYS}"));
        assert_eq!(
            error("loss=101%"),
            "loss: '101%' is no chance; allowed: 0% to 100% in steps of 0.0001%, or like 300ppm"
        );
        assert_eq!(error("mtu=100"), "mtu: '100' is not allowed: 576 to 65535 bytes");
        for wrong in [
            "",
            "=",
            "delay=",
            "delay=5",
            "delay=-1ms",
            "delay=1.ms",
            "delay=.5ms",
            "delay=1e3ms",
            "delay=5xs",
            "delay=99999999999999999999s",
            "loss=1",
            "loss=0.00001%",
            "loss=gilbert:1%",
            "loss=gilbert:1%/2%/3%/4%/5%",
            "rate=5",
            "rate=0bit",
            "queue=x",
            "jitter=normal:1ms",
            "mtu=70000",
            "duplicate=ppm",
            "delay=1ms\u{e9}",
        ] {
            assert!(Settings::parse_change(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(
            nanos in 0u64..4_000_000_000, chances in proptest::array::uniform7(0u32..=1_000_000),
            rate in proptest::option::of(1_000u64..10_000_000_000), queue_bytes in 0u64..1 << 30, mtu in 576usize..=65_535,
            bursts: bool,
        ) {
            let time = Duration::from_nanos(nanos);
            let [worsens, mends, bad, good, duplicate, reorder, corrupt] = chances;
            let (loss, jitter) = if bursts {
                (Loss::Gilbert { worsens, mends, bad, good }, Jitter::Lognormal(time))
            } else {
                (Loss::Each(bad), Jitter::Uniform(time))
            };
            let settings = Settings {
                delay: time, jitter, drift: time / 2, loss, duplicate, reorder, reorder_by: time / 3, corrupt, rate,
                queue_bytes, mtu,
            };
            prop_assert_eq!(after(&settings.to_string()), settings);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = Settings::parse_change(&text);
        }
    }
}
