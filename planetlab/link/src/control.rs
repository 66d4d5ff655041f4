//! The language in which a network is changed while it runs, one command a line.
//!
//! ```text
//! partition A|B            nothing passes between A and B; '*' is everybody else
//! oneway A->B              nothing passes from A to B
//! isolate A                nothing passes between A and everybody else
//! heal                     joins all that was cut
//! set FROM TO key=value …  changes links; later changes count over earlier ones
//! bad A key=value …        changes all links to and from A
//! limit A up=RATE down=RATE   what each of A may send and receive in all
//! scale rtt 2              multiplies all delays, compared to those without any scale
//! pause A / resume A       A stands still: a driver of processes stops them
//! crash A / start A        A is gone: a driver of processes kills them
//! reset                    undoes all of set, bad, limit and scale
//! ```
//!
//! `A` is `n1`, `n1-n5`, `c1` (a client), a site, `@area`, or several of them; see [`Roster::resolve`].

use crate::network::Network;
use crate::roster::{Endpoint, Ends, Roster};
use crate::settings::{Change, Settings};
use crate::units;
use std::fmt;

/// One command.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Nothing passes between the two.
    Partition(Ends, Ends),
    /// Nothing passes from the first to the second.
    Oneway(Ends, Ends),
    /// Nothing passes between these and all others.
    Isolate(Ends),
    /// Joins all that was cut.
    Heal,
    /// Changes links.
    Set(Ends, Ends, Change),
    /// Changes all links to and from these.
    Bad(Ends, Change),
    /// What each of these may send and receive, in bits a second; `None` is no limit.
    Limit(Vec<Endpoint>, Option<u64>, Option<u64>),
    /// Multiplies all delays.
    ScaleRtt(f64),
    /// These stand still.
    Pause(Vec<Endpoint>),
    /// These go on.
    Resume(Vec<Endpoint>),
    /// These are gone.
    Crash(Vec<Endpoint>),
    /// These are there again.
    Start(Vec<Endpoint>),
    /// Undoes all changes of links.
    Reset,
}

const COMMANDS: &str = "partition A|B, oneway A->B, isolate A, heal, set FROM TO key=value, bad A key=value, limit A up=RATE down=RATE, \
     scale rtt FACTOR, pause A, resume A, crash A, start A, reset";

impl Control {
    /// Reads a command about those on the roster.
    ///
    /// # Errors
    /// The word that is wrong, and what is allowed.
    pub fn parse(text: &str, roster: &Roster) -> Result<Self, String> {
        let text = text.trim();
        let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let some = |of: fn(Vec<Endpoint>) -> Self| roster.resolve(rest).map(|ends| of(roster.members(&ends)));
        let read = match command {
            "partition" => two_sides(rest, "|", roster).map(|(some, others)| Self::Partition(some, others)),
            "oneway" => two_sides(rest, "->", roster).map(|(from, to)| Self::Oneway(from, to)),
            "isolate" => isolate(rest, roster),
            "set" => set(rest, roster),
            "bad" => bad(rest, roster),
            "limit" => limit(rest, roster),
            "scale" => scale(rest),
            "pause" => some(Self::Pause),
            "resume" => some(Self::Resume),
            "crash" => some(Self::Crash),
            "start" => some(Self::Start),
            "heal" | "reset" if !rest.is_empty() => Err(format!("'{rest}' is too much; nothing follows")),
            "heal" => Ok(Self::Heal),
            "reset" => Ok(Self::Reset),
            _ => return Err(format!("there is no '{command}'; allowed: {COMMANDS}")),
        };
        read.map_err(|why| format!("{command}: {why}"))
    }

    /// Does it to a network.
    ///
    /// # Errors
    /// Too many changes are in force.
    pub fn apply(&self, network: &mut Network) -> Result<(), String> {
        match self {
            Self::Partition(some, others) => network.partition(some, others),
            Self::Oneway(from, to) => network.cut(from, to),
            Self::Isolate(ends) => network.isolate(ends),
            Self::Heal => network.heal(),
            Self::Set(from, to, change) => network.change(from, to, change)?,
            Self::Bad(ends, change) => {
                network.change(ends, &Ends::all(), change)?;
                network.change(&Ends::all(), ends, change)?;
            }
            Self::Limit(ends, up, down) => ends.iter().for_each(|end| network.limit(*end, *up, *down)),
            Self::ScaleRtt(factor) => network.scale_delays(*factor),
            Self::Pause(ends) => ends.iter().for_each(|end| network.pause(*end)),
            Self::Resume(ends) => ends.iter().for_each(|end| network.resume(*end)),
            Self::Crash(ends) => ends.iter().for_each(|end| network.crash(*end)),
            Self::Start(ends) => ends.iter().for_each(|end| network.start(*end)),
            Self::Reset => network.reset(),
        }
        Ok(())
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ends: &[Endpoint]| ends.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Partition(some, others) => write!(f, "partition {some}|{others}"),
            Self::Oneway(from, to) => write!(f, "oneway {from}->{to}"),
            Self::Isolate(ends) => write!(f, "isolate {ends}"),
            Self::Heal => write!(f, "heal"),
            Self::Set(from, to, change) => write!(f, "set {from} {to} {change}"),
            Self::Bad(ends, change) => write!(f, "bad {ends} {change}"),
            Self::Limit(ends, up, down) => {
                let [up, down] = [*up, *down].map(units::show_rate);
                write!(f, "limit {} up={up} down={down}", list(ends))
            }
            Self::ScaleRtt(factor) => write!(f, "scale rtt {factor}"),
            Self::Pause(ends) => write!(f, "pause {}", list(ends)),
            Self::Resume(ends) => write!(f, "resume {}", list(ends)),
            Self::Crash(ends) => write!(f, "crash {}", list(ends)),
            Self::Start(ends) => write!(f, "start {}", list(ends)),
            Self::Reset => write!(f, "reset"),
        }
    }
}

/// Two groups; `*` on one side is everybody who is not on the other.
fn two_sides(text: &str, between: &str, roster: &Roster) -> Result<(Ends, Ends), String> {
    let (left, right) = text
        .split_once(between)
        .ok_or_else(|| format!("'{text}' has no '{between}'; allowed: A{between}B"))?;
    let (left, right) = (roster.resolve(left)?, roster.resolve(right)?);
    let (left, right) = match (left == Ends::all(), right == Ends::all()) {
        (true, true) => {
            return Err(format!("'{text}' names nobody; '*' is everybody who is not on the other side"));
        }
        (true, false) => (right.others(), right),
        (false, true) => (left.clone(), left.others()),
        (false, false) => (left, right),
    };
    let both = roster.members(&left).into_iter().find(|end| right.contains(*end));
    match both {
        Some(end) => Err(format!("{end} is on both sides; each may be on one")),
        None => Ok((left, right)),
    }
}

fn isolate(text: &str, roster: &Roster) -> Result<Control, String> {
    let ends = roster.resolve(text)?;
    if ends == Ends::all() {
        return Err("'*' leaves nobody to be cut off from; allowed: some of them".into());
    }
    Ok(Control::Isolate(ends))
}

fn set(text: &str, roster: &Roster) -> Result<Control, String> {
    let mut words = text.splitn(3, char::is_whitespace);
    let (from, to, change) = (words.next(), words.next(), words.next().unwrap_or_default());
    let (from, to) =
        from.zip(to).ok_or_else(|| format!("'{text}' is too little; allowed: set FROM TO key=value …"))?;
    Ok(Control::Set(roster.resolve(from)?, roster.resolve(to)?, Settings::parse_change(change)?))
}

fn bad(text: &str, roster: &Roster) -> Result<Control, String> {
    let (who, change) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Ok(Control::Bad(roster.resolve(who)?, Settings::parse_change(change)?))
}

fn limit(text: &str, roster: &Roster) -> Result<Control, String> {
    let (who, rates) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let ends = roster.members(&roster.resolve(who)?);
    let (mut up, mut down) = (None, None);
    for word in rates.split_whitespace() {
        match word.split_once('=') {
            Some(("up", rate)) => up = units::rate(rate)?,
            Some(("down", rate)) => down = units::rate(rate)?,
            Some(_) | None => return Err(format!("'{word}' is not allowed: up=RATE, down=RATE")),
        }
    }
    Ok(Control::Limit(ends, up, down))
}

fn scale(text: &str) -> Result<Control, String> {
    const ALLOWED: std::ops::RangeInclusive<f64> = 0.0..=1_000.0;
    let factor = text.strip_prefix("rtt").filter(|rest| rest.starts_with(char::is_whitespace));
    let factor =
        factor.ok_or_else(|| format!("'{text}' cannot be scaled; allowed: scale rtt FACTOR"))?.trim();
    let number = factor.parse().ok().filter(|number| ALLOWED.contains(number));
    number
        .map(Control::ScaleRtt)
        .ok_or_else(|| format!("'{factor}' is no factor; allowed: 0 to 1000, like 2 or 0.5"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use proptest::prelude::*;

    fn roster() -> Roster {
        Scenario::parse("preset = \"global25\"\nnodes = 15\n").expect("it is allowed").roster
    }

    #[test]
    fn commands_are_read_and_read_back() {
        let roster = roster();
        for text in [
            "partition n1-n3|n4,n5",
            "partition @eu|*",
            "partition @na @sa | @eu",
            "oneway n1->n2",
            "oneway *->n2",
            "isolate @eu",
            "isolate n1 n2",
            "heal",
            "set n1 * delay=20ms loss=1%",
            "set @eu @na mtu=1280",
            "set westus2 n2,n3 rate=10Mbit",
            "scale rtt 2",
            "scale rtt 0.5",
            "pause n3",
            "resume n1-n4",
            "crash *",
            "start n2",
            "bad n7 delay=300ms loss=30%",
            "limit n1 up=10Mbit down=none",
            "reset",
            "  heal  ",
        ] {
            let control = Control::parse(text, &roster).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(Control::parse(&control.to_string(), &roster), Ok(control), "{text}");
        }
        let n = |number| Endpoint(number);
        let control = Control::parse("partition n1-n3|*", &roster);
        let Ok(Control::Partition(some, others)) = control else { panic!("{control:?}") };
        assert!(
            some.contains(n(2)) && !some.contains(n(4)) && others.contains(n(4)) && !others.contains(n(2))
        );
        assert!(others.contains(n(99)), "also who comes later");
    }

    #[test]
    fn a_wrong_word_is_named_with_what_is_allowed() {
        let small = Roster::of_nodes(3);
        let error = |text| Control::parse(text, &small).expect_err("it is wrong");
        assert_eq!(error("split n1|n2"), format!("there is no 'split'; allowed: {COMMANDS}"));
        assert_eq!(error("isolate n9"), "isolate: 'n9' is nobody; allowed: *, n1 to n3, n1-n3");
        assert_eq!(error("isolate @eu"), "isolate: '@eu' is nobody; allowed: *, n1 to n3, n1-n3");
        assert_eq!(error("pause n1-n9"), "pause: 'n1-n9': there is no n9; allowed: *, n1 to n3, n1-n3");
        assert_eq!(error("partition n1 n2"), "partition: 'n1 n2' has no '|'; allowed: A|B");
        assert_eq!(error("partition n1-n2|n2"), "partition: n2 is on both sides; each may be on one");
        assert_eq!(error("isolate"), "isolate: who? Allowed: *, n1 to n3, n1-n3");
        assert_eq!(
            error("isolate *"),
            "isolate: '*' leaves nobody to be cut off from; allowed: some of them"
        );
        assert_eq!(error("heal n1"), "heal: 'n1' is too much; nothing follows");
        assert_eq!(error("scale loss 2"), "scale: 'loss 2' cannot be scaled; allowed: scale rtt FACTOR");
        assert_eq!(error("scale rtt two"), "scale: 'two' is no factor; allowed: 0 to 1000, like 2 or 0.5");
        assert_eq!(error("scale rtt NaN"), "scale: 'NaN' is no factor; allowed: 0 to 1000, like 2 or 0.5");
        assert!(error("set n1 n2").starts_with("set: what is to change? Allowed: key=value"));
        assert!(error("set n1").starts_with("set: 'n1' is too little"));
        assert!(error("bad n1 lag=1ms").starts_with("bad: there is no 'lag'"));
        assert!(error("limit n1 sideways=1Mbit").starts_with("limit: 'sideways=1Mbit' is not allowed"));
        assert!(error("").starts_with("there is no ''"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(partition|oneway|set|bad|scale|limit|isolate)? ?\\PC{0,30}") {
            let roster = roster();
            if let Ok(control) = Control::parse(&text, &roster) {
                prop_assert!(control.apply(&mut Network::new(1, Settings::default())).is_ok());
            }
        }
    }
}
