//! Reads a plan from TOML.
//!
//! The text is parsed into a table that knows where each word stands. The parts of it become the types of
//! [`super::step`] by serde, which refuses every word that they do not have. What is wrong becomes one line: file,
//! line, what is wrong, and the nearest right word. What `--set` says is put into the table before that, so
//! that a wrong value there is found in the same way.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::step::{ClusterSettings, Fault, Head, KINDS, Kind, Plan, SETTINGS, Settings, Step};
use super::words;

/// Words of every step.
const STEP_WORDS: [&str; 2] = ["do", "name"];
/// The tables of a plan beside the words of its head.
const TABLES: [&str; 3] = ["cluster", "defaults", "step"];
const HEAD_WORDS: [&str; 4] = ["name", "description", "seed", "thresholds"];
const CLUSTER_WORDS: [&str; 2] = ["nodes", "settings"];

/// One `--set NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Left of the first `=`: a word, or the name or kind of steps, a dot, and a word.
    pub name: String,
    /// Right of it: TOML, or a text without quotation marks.
    pub value: String,
}

impl Change {
    /// Reads one.
    ///
    /// # Errors
    /// What would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            format!("--set {text}: must be NAME=VALUE or STEP.NAME=VALUE, as in seconds=2 or R16.clients=32")
        })?;
        Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
    }
}

/// The text of a plan, and how to say where something stands in it.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
    changes: &'a [Change],
}

type Table<'a> = DeTable<'a>;

/// Reads a plan; `file` is what messages call it.
///
/// # Errors
/// One line, which names the place and what would be right.
pub fn parse(file: &str, text: &str, changes: &[Change]) -> Result<Plan, String> {
    let source = Source { file, text, changes };
    let parsed = DeTable::parse(text).map_err(|error| {
        // The second line of a message says what was expected; both fit into one.
        let message = error.message().trim().lines().collect::<Vec<_>>().join(", ");
        source.say(error.span(), &message)
    })?;
    let whole = parsed.span();
    let mut head = parsed.into_inner();
    let mut parts = Parts::take(&source, &mut head)?;
    parts.head = head;
    for (index, change) in changes.iter().enumerate() {
        parts.change(&source, index, change)?;
    }
    parts.into_plan(&source, whole)
}

/// A plan taken apart.
struct Parts<'a> {
    head: Table<'a>,
    cluster: Table<'a>,
    defaults: Table<'a>,
    steps: Vec<(Range<usize>, Table<'a>)>,
}

impl<'a> Parts<'a> {
    fn take(source: &Source<'_>, head: &mut Table<'a>) -> Result<Self, String> {
        let mut table = |word: &str| match remove(head, word) {
            None => Ok(Table::new()),
            Some(value) => {
                let span = value.span();
                match value.into_inner() {
                    DeValue::Table(table) => Ok(table),
                    _ => Err(source.say(Some(span), &format!("{word:?} must be a table, [{word}]"))),
                }
            }
        };
        let (cluster, defaults) = (table("cluster")?, table("defaults")?);
        let mut steps = Vec::new();
        if let Some(list) = remove(head, "step") {
            let span = list.span();
            let DeValue::Array(list) = list.into_inner() else {
                return Err(source.say(Some(span), "a step is written [[step]], with two brackets"));
            };
            for step in list {
                let span = step.span();
                match step.into_inner() {
                    DeValue::Table(table) => steps.push((span, table)),
                    _ => return Err(source.say(Some(span), "a step is written [[step]], with two brackets")),
                }
            }
        }
        Ok(Self { head: Table::new(), cluster, defaults, steps })
    }

    /// Puts a change where it belongs: a default also into every step that has a word of its own for it.
    fn change(&mut self, source: &Source<'a>, index: usize, change: &'a Change) -> Result<(), String> {
        // A place behind the text stands for a place on the command line.
        let place = source.text.len() + 1 + index;
        let value = || {
            let parsed = DeValue::parse(&change.value).map(Spanned::into_inner);
            Spanned::new(place..place, parsed.unwrap_or(DeValue::String(Cow::Borrowed(&change.value))))
        };
        let key = |word: &'a str| Spanned::new(place..place, Cow::Borrowed(word));
        let word = change.name.as_str();
        if let Some((step, word)) = word.split_once('.') {
            let mut is_found = false;
            for (_, table) in &mut self.steps {
                if text_of(table, "name") == Some(step) || text_of(table, "do") == Some(step) {
                    put(table, key(word), value());
                    is_found = true;
                }
            }
            let names =
                self.steps.iter().flat_map(|(_, table)| [text_of(table, "name"), text_of(table, "do")]);
            let names: Vec<&str> = names.flatten().collect();
            return if is_found {
                Ok(())
            } else {
                Err(source.say(
                    Some(place..place),
                    &format!("there is no step {step:?}; {}", words::instead(step, names)),
                ))
            };
        }
        if CLUSTER_WORDS.contains(&word) {
            put(&mut self.cluster, key(word), value());
            return Ok(());
        }
        if HEAD_WORDS.contains(&word) {
            put(&mut self.head, key(word), value());
            return Ok(());
        }
        let is_setting = SETTINGS.contains(&word);
        if is_setting {
            put(&mut self.defaults, key(word), value());
        }
        let mut is_used = is_setting;
        for (_, table) in &mut self.steps {
            if remove(table, word).is_some() {
                table.insert(key(word), value());
                is_used = true;
            }
        }
        if is_used {
            return Ok(());
        }
        let of_steps =
            self.steps.iter().flat_map(|(_, table)| table.keys().map(|key| key.get_ref().as_ref()));
        let allowed = SETTINGS.into_iter().chain(CLUSTER_WORDS).chain(HEAD_WORDS).chain(of_steps);
        let instead = words::instead(word, allowed);
        Err(source.say(Some(place..place), &format!("nothing in this plan is called {word:?}; {instead}")))
    }

    fn into_plan(self, source: &Source<'a>, whole: Range<usize>) -> Result<Plan, String> {
        let Self { head, cluster, defaults, steps } = self;
        let head: Head = source.read(whole.clone(), head, &TABLES)?;
        let nodes = cluster.iter().find(|(key, _)| key.get_ref() == "nodes").map(|(key, _)| key.span());
        let cluster: ClusterSettings = source.read(whole.clone(), cluster, &[])?;
        if !(1..=256).contains(&cluster.nodes) {
            let message = format!("\"nodes\" of [cluster] must be 1 to 256, not {}", cluster.nodes);
            return Err(source.say(nodes, &message));
        }
        source.settings(whole.clone(), defaults.clone())?;
        if steps.is_empty() {
            return Err(source.say(None, "there is no [[step]]; a plan is a list of steps"));
        }
        let step = |(span, table)| source.step(span, table, &defaults);
        Ok(Plan {
            name: head.name,
            description: head.description,
            cluster,
            seed: head.seed,
            thresholds: head.thresholds,
            steps: steps.into_iter().map(step).collect::<Result<_, _>>()?,
        })
    }
}

impl<'a> Source<'a> {
    /// `FILE:LINE`, or the change on the command line.
    fn place(&self, span: Option<Range<usize>>) -> String {
        match span {
            None => self.file.to_owned(),
            Some(span) if self.text.len() < span.start => {
                let change = &self.changes[span.start - self.text.len() - 1];
                format!("--set {}={}", change.name, change.value)
            }
            Some(span) => {
                let line = 1 + self.text[..span.start].bytes().filter(|&byte| byte == b'\n').count();
                format!("{}:{line}", self.file)
            }
        }
    }

    fn say(&self, span: Option<Range<usize>>, message: &str) -> String {
        format!("{}: {message}", self.place(span))
    }

    /// Reads a table as a type; `more` are the words that are allowed beside the type's own.
    fn read<T: Deserialize<'a>>(
        &self,
        span: Range<usize>,
        table: Table<'a>,
        more: &[&str],
    ) -> Result<T, String> {
        let places: Vec<(String, Range<usize>, Range<usize>)> =
            table.iter().map(|(key, value)| (key.get_ref().to_string(), key.span(), value.span())).collect();
        let whole = Spanned::new(span.clone(), DeValue::Table(table));
        T::deserialize(whole.into_deserializer()).map_err(|error| {
            let message = error.message();
            let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
            let at = error.span().unwrap_or(span);
            let place = |word: &str| places.iter().find(|(name, ..)| name == word);
            if message.starts_with("unknown field") {
                let (word, allowed) = (quoted[0], quoted[1..].iter().copied().chain(more.iter().copied()));
                let at = place(word).map_or(at, |(_, key, _)| key.clone());
                return self
                    .say(Some(at), &format!("{word:?} is no word here; {}", words::instead(word, allowed)));
            }
            if message.starts_with("unknown variant") {
                let (word, allowed) = (quoted[0], quoted[1..].iter().copied());
                return self.say(
                    Some(at),
                    &format!("{word:?} cannot stand here; {}", words::instead(word, allowed)),
                );
            }
            if message.starts_with("missing field") {
                return self.say(Some(at), &format!("{:?} is missing", quoted[0]));
            }
            // The value belongs to a word, whose name is worth saying.
            let of_word = places.iter().find(|(_, _, value)| value.contains(&at.start) || *value == at);
            let word = of_word.map_or(String::new(), |(name, ..)| format!("{name}: "));
            self.say(Some(at), &format!("{word}{}", message.trim().replace('\n', ", ")))
        })
    }

    fn settings(&self, span: Range<usize>, table: Table<'a>) -> Result<Settings, String> {
        let places: Vec<(String, Range<usize>)> =
            table.iter().map(|(key, _)| (key.get_ref().to_string(), key.span())).collect();
        let settings: Settings = self.read(span, table, &[])?;
        settings.check().map_err(|(word, right)| {
            let place = places.iter().find(|(name, _)| name == word).map(|(_, span)| span.clone());
            self.say(place, &format!("{word} {right}"))
        })?;
        Ok(settings)
    }

    /// Takes a step apart into what its load is and what is its own.
    fn step(&self, span: Range<usize>, mut own: Table<'a>, defaults: &Table<'a>) -> Result<Step, String> {
        let mut text = |word: &str| match remove(&mut own, word) {
            None => Ok(None),
            Some(value) => match value.get_ref().as_str() {
                Some(text) => Ok(Some((text.to_owned(), value.span()))),
                None => Err(self.say(Some(value.span()), &format!("{word:?} must be a text"))),
            },
        };
        let Some((word, word_span)) = text("do")? else {
            let kinds = KINDS.join(", ");
            return Err(
                self.say(Some(span), &format!("this step does not say what to do; do = one of {kinds}"))
            );
        };
        let name = text("name")?.map_or_else(|| word.clone(), |(name, _)| name);
        let Some(takes) = takes(&word) else {
            let instead = words::instead(&word, KINDS);
            return Err(
                self.say(Some(word_span), &format!("{word:?} is nothing that a step does; {instead}"))
            );
        };
        let mut settings = Table::new();
        for (key, value) in defaults.iter().filter(|(key, _)| takes.contains(&key.get_ref().as_ref())) {
            settings.insert(key.clone(), value.clone());
        }
        for setting in takes {
            if let Some((key, value)) = remove_entry(&mut own, setting) {
                put(&mut settings, key, value);
            }
        }
        let settings = self.settings(span.clone(), settings)?;
        let more: Vec<&str> = takes.iter().copied().chain(STEP_WORDS).collect();
        let spans: Vec<(String, Range<usize>)> =
            own.iter().map(|(key, _)| (key.get_ref().to_string(), key.span())).collect();
        let kind = self.kind(&word, span.clone(), own, &more)?;
        check(&kind).map_err(|(word, right)| {
            let place =
                spans.iter().find(|(name, _)| name == word).map_or(span.clone(), |(_, span)| span.clone());
            self.say(Some(place), &format!("{word} {right}"))
        })?;
        Ok(Step { name, place: self.place(Some(span)), kind, settings })
    }

    fn kind(&self, word: &str, span: Range<usize>, own: Table<'a>, more: &[&str]) -> Result<Kind, String> {
        Ok(match word {
            "conformance" => Kind::Conformance(self.read(span, own, more)?),
            "load" => Kind::Load(self.read(span, own, more)?),
            "grid" => Kind::Grid(self.read(span, own, more)?),
            "search" => Kind::Search(self.read(span, own, more)?),
            "bulk" => Kind::Bulk(self.read(span, own, more)?),
            "capacity" => Kind::Capacity(self.read(span, own, more)?),
            "faults" => Kind::Faults(self.read(span, own, more)?),
            "scaling" => Kind::Scaling(self.read(span, own, more)?),
            "wipe" => Kind::Wipe(self.read(span, own, more)?),
            "pause" => Kind::Pause(self.read(span, own, more)?),
            other => unreachable!("{other} takes no settings, so it was refused before"),
        })
    }
}

/// The settings that a kind of step takes; `None` of no kind.
fn takes(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "load" | "search" | "scaling" => &SETTINGS,
        "conformance" | "capacity" | "wipe" => &["format"],
        "grid" => &["format", "key-bytes", "value-bytes", "seconds", "repeats", "threads"],
        "bulk" => &["format", "keys", "key-bytes", "value-bytes", "seconds", "waits-ms", "threads"],
        "faults" => &[
            "format",
            "keys",
            "key-bytes",
            "value-bytes",
            "mix",
            "arrivals",
            "waits-ms",
            "in-flight-max",
            "threads",
        ],
        "pause" => &[],
        _ => return None,
    })
}

/// What serde does not see: ranges, and lists that must not be empty.
fn check(kind: &Kind) -> Result<(), (&'static str, String)> {
    let positive = |word, value: f64| {
        let right = format!("must be above 0, not {value}");
        if 0.0 < value && value.is_finite() { Ok(()) } else { Err((word, right)) }
    };
    let seconds = |word, value: f64| {
        let right = format!("must be 0 to 86400 seconds, not {value}");
        if (0.0..=86_400.0).contains(&value) { Ok(()) } else { Err((word, right)) }
    };
    match kind {
        Kind::Conformance(step) => {
            let known: Vec<&str> = crate::stages::STAGES.iter().map(|stage| stage.name).collect();
            for (word, list) in [("stages", &step.stages), ("without", &step.without)] {
                if let Some(stage) = list.iter().find(|stage| !known.contains(&stage.as_str())) {
                    let instead = words::instead(stage, known.iter().copied());
                    return Err((word, format!("names {stage:?}, which is no stage; {instead}")));
                }
            }
            Ok(())
        }
        Kind::Load(step) => {
            if step.rates.is_empty() && step.clients.is_empty() {
                let right = "must name rates (open loops, requests a second) or \"clients\" closed loops";
                return Err(("rates", right.to_owned()));
            }
            if step.clients.contains(&0) {
                return Err(("clients", "must be above 0".to_owned()));
            }
            step.rates.iter().try_for_each(|&rate| positive("rates", rate))
        }
        Kind::Grid(step) if step.cells.is_empty() => {
            Err(("cells", "must name one cell at least, as in [\"S1\", \"R16\"]".to_owned()))
        }
        Kind::Grid(step) => seconds("rest-seconds", step.rest_seconds),
        Kind::Search(step) => {
            positive("from-rate", step.from_rate)?;
            if !(step.from_rate..=1e7).contains(&step.rate_max) {
                return Err(("rate-max", format!("must be from-rate to 10000000, not {}", step.rate_max)));
            }
            if (1.01..=10.0).contains(&step.factor) {
                Ok(())
            } else {
                Err(("factor", format!("must be 1.01 to 10, not {}", step.factor)))
            }
        }
        Kind::Bulk(step) if step.clients == 0 => Err(("clients", "must be above 0".to_owned())),
        Kind::Bulk(step) => {
            step.memory_multiple.map_or(Ok(()), |multiple| positive("memory-multiple", multiple))
        }
        Kind::Faults(step) => {
            positive("rate", step.rate)?;
            seconds("seconds-before", step.seconds_before)?;
            seconds("seconds-down", step.seconds_down)?;
            seconds("seconds-after", step.seconds_after)?;
            seconds("settle-seconds", step.settle_seconds)?;
            if step.nodes == 0 {
                return Err(("nodes", "must be above 0".to_owned()));
            }
            if step.fault == Fault::BadNode && step.nodes != 1 {
                return Err(("nodes", "must be 1 when the fault is bad-node".to_owned()));
            }
            Ok(())
        }
        Kind::Scaling(step) => {
            positive("rate", step.rate)?;
            if step.nodes.is_empty()
                || step.nodes.iter().chain(&step.simulated).any(|nodes| !(1..=256).contains(nodes))
            {
                return Err(("nodes", "must be numbers of nodes from 1 to 256, as in [1, 2, 3]".to_owned()));
            }
            Ok(())
        }
        Kind::Pause(step) => seconds("pause-seconds", step.pause_seconds),
        Kind::Capacity(step) if step.mib_max == 0 => Err(("mib-max", "must be above 0".to_owned())),
        Kind::Capacity(_) | Kind::Wipe(_) => Ok(()),
    }
}

fn remove<'a>(table: &mut Table<'a>, word: &str) -> Option<Spanned<DeValue<'a>>> {
    remove_entry(table, word).map(|(_, value)| value)
}

type Entry<'a> = (Spanned<Cow<'a, str>>, Spanned<DeValue<'a>>);

fn remove_entry<'a>(table: &mut Table<'a>, word: &str) -> Option<Entry<'a>> {
    table.remove_entry(word)
}

/// Puts a word in anew: an equal one would keep its place.
fn put<'a>(table: &mut Table<'a>, key: Spanned<Cow<'a, str>>, value: Spanned<DeValue<'a>>) {
    remove(table, key.get_ref());
    table.insert(key, value);
}

fn text_of<'t>(table: &'t Table<'_>, word: &str) -> Option<&'t str> {
    table.get(word)?.get_ref().as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::step::FormatName;
    use crate::workload::KeyOrder;

    const PLAN: &str = "name = \"mine\"
description = \"tries\"

[defaults]
seconds = 2
key-order = \"zipf:0.8\"

[[step]]
do = \"wipe\"

[[step]]
do = \"load\"
name = \"steady\"
rates = [100, 200.5]
format = \"raw\"

[[step]]
do = \"pause\"
pause-seconds = 0.5
";

    fn changes(texts: &[&str]) -> Vec<Change> {
        texts.iter().map(|text| Change::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_plan_is_read_and_steps_take_what_the_defaults_say() {
        let plan = parse("mine.toml", PLAN, &[]).unwrap();
        assert_eq!((plan.name.as_str(), plan.steps.len(), plan.cluster.nodes), ("mine", 3, 5));
        let load = &plan.steps[1];
        assert_eq!((load.name.as_str(), load.place.as_str()), ("steady", "mine.toml:11"));
        assert_eq!(load.settings.seconds, 2.0);
        assert_eq!(load.settings.key_order, KeyOrder::Zipf { theta: 0.8 });
        assert_eq!(
            (load.settings.format, plan.steps[0].settings.format),
            (FormatName::Raw, FormatName::Protobuf)
        );
        let Kind::Load(kind) = &load.kind else { panic!("{load:?}") };
        assert_eq!(kind.rates, [100.0, 200.5]);
    }

    #[test]
    fn changes_of_the_command_line_win() {
        let list = changes(&[
            "seconds=7",
            "format=protobuf",
            "steady.rates=[5]",
            "nodes=3",
            "pause-seconds=1",
            "seed=4",
        ]);
        let plan = parse("mine.toml", PLAN, &list).unwrap();
        let load = &plan.steps[1];
        assert_eq!((load.settings.seconds, load.settings.format), (7.0, FormatName::Protobuf));
        assert_eq!((plan.cluster.nodes, plan.seed), (3, Some(4)));
        assert!(matches!(&load.kind, Kind::Load(kind) if kind.rates == [5.0]));
        assert!(matches!(&plan.steps[2].kind, Kind::Pause(kind) if kind.pause_seconds == 1.0));
    }

    /// Replaces a part of the plan and looks for the whole message.
    fn check(part: &str, by: &str, expected: &str) {
        assert!(PLAN.contains(part), "{part}");
        let message = parse("mine.toml", &PLAN.replacen(part, by, 1), &[]).unwrap_err();
        assert_eq!(message, expected);
    }

    #[test]
    fn typos_are_named_with_their_line_and_the_right_word() {
        check(
            "seconds = 2",
            "secnds = 2",
            "mine.toml:5: \"secnds\" is no word here; did you mean \"seconds\"?",
        );
        check(
            "name = \"mine\"",
            "nmae = \"mine\"",
            "mine.toml:1: \"nmae\" is no word here; did you mean \"name\"?",
        );
        check(
            "[[step]]\ndo = \"wipe\"",
            "[[steps]]\ndo = \"wipe\"",
            "mine.toml:8: \"steps\" is no word here; did you mean \"step\"?",
        );
        check(
            "\"wipe\"",
            "\"wiep\"",
            "mine.toml:9: \"wiep\" is nothing that a step does; did you mean \"wipe\"?",
        );
        check(
            "rates = [100, 200.5]",
            "rate = [100]",
            "mine.toml:14: \"rate\" is no word here; did you mean \"rates\"?",
        );
        check(
            "format = \"raw\"",
            "format = \"row\"",
            "mine.toml:15: \"row\" cannot stand here; did you mean \"raw\"?",
        );
        check(
            "do = \"pause\"\n",
            "",
            "mine.toml:17: this step does not say what to do; do = one of conformance, load, grid, search, bulk, capacity, faults, scaling, wipe, pause",
        );
        check(
            "pause-seconds = 0.5",
            "seconds = 1",
            "mine.toml:19: \"seconds\" is no word here; allowed: pause-seconds, do, name",
        );
        check("pause-seconds = 0.5\n", "", "mine.toml:17: \"pause-seconds\" is missing");
    }

    #[test]
    fn values_that_cannot_be_are_named_with_what_would_be_right() {
        check("seconds = 2", "seconds = 0", "mine.toml:5: seconds must be 0.1 to 86400 seconds, not 0");
        check(
            "seconds = 2",
            "seconds = \"two\"",
            "mine.toml:5: seconds: invalid type: string \"two\", expected f64",
        );
        check(
            "zipf:0.8",
            "zip",
            "mine.toml:6: key-order: \"zip\" is no key order: uniform, sequential, absent, zipf:0.99 (0 to 10), hot:90:10 (percents)",
        );
        check("[100, 200.5]", "[0]", "mine.toml:14: rates must be above 0, not 0");
        check(
            "rates = [100, 200.5]\n",
            "",
            "mine.toml:11: rates must name rates (open loops, requests a second) or \"clients\" closed loops",
        );
        check("[defaults]", "[[defaults]]", "mine.toml:4: \"defaults\" must be a table, [defaults]");
        check("name = \"steady\"", "name = 5", "mine.toml:13: \"name\" must be a text");
        check(
            "do = \"wipe\"",
            "do = wipe",
            "mine.toml:9: string values must be quoted, expected literal string",
        );
    }

    #[test]
    fn a_plan_without_steps_is_none() {
        let message = parse("x", "name = \"a\"\ndescription = \"b\"\n", &[]).unwrap_err();
        assert_eq!(message, "x: there is no [[step]]; a plan is a list of steps");
        let message = parse("x", "description = \"b\"\n", &[]).unwrap_err();
        assert_eq!(message, "x:1: \"name\" is missing");
    }

    #[test]
    fn wrong_changes_are_named_as_they_stand_on_the_command_line() {
        let check = |change: &str, expected: &str| {
            let message = parse("mine.toml", PLAN, &changes(&[change])).unwrap_err();
            assert_eq!(message, expected);
        };
        check(
            "secnds=3",
            "--set secnds=3: nothing in this plan is called \"secnds\"; did you mean \"seconds\"?",
        );
        check("seconds=x", "--set seconds=x: seconds: invalid type: string \"x\", expected f64");
        check("seconds=-1", "--set seconds=-1: seconds must be 0.1 to 86400 seconds, not -1");
        check(
            "stedy.seconds=1",
            "--set stedy.seconds=1: there is no step \"stedy\"; did you mean \"steady\"?",
        );
        check(
            "steady.cells=1",
            "--set steady.cells=1: \"cells\" is no word here; allowed: rates, clients, fill, format, keys, key-bytes, key-order, value-bytes, mix, arrivals, route, seconds, warm-up, repeats, waits-ms, in-flight-max, threads, do, name",
        );
        check("nodes=0", "--set nodes=0: \"nodes\" of [cluster] must be 1 to 256, not 0");
        assert!(Change::parse("seconds").unwrap_err().contains("must be NAME=VALUE"));
    }
}
