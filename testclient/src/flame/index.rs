//! `index.html`: the episodes side by side, made from the folders alone.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::diff::{BACKWARD_FILE, FORWARD_FILE, TABLE_FILE};
use super::episodes::{self, EPISODES, Episode};
use super::groups::Group;
use super::record::{FLAME_FILE, Meta};
use crate::report::milliseconds;

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Violet: flame graphs</title>
<style>
body { font: 15px/1.5 sans-serif; max-width: 1500px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #bbb; padding: .2em .6em; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1em; }
.pair img { width: 100%; border: 1px solid #ddd; }
figure { margin: 0; }
figcaption { font-size: 13px; }
code { font-size: 13px; }
.warning { color: #a00; }
</style>
</head>
<body>
<h1>Flame graphs</h1>
<p>Each episode changes one thing and keeps the load: the same nodes, requests and offered rate on both sides. Width
is processor time. Click a graph to search and zoom in it. In the lower graphs red has grown from before to after and
blue has shrunk, in nanoseconds per request; the left one has the shape of after, the right one that of before, in
which what is gone can be seen. <a href="README.md">How they are made and read.</a></p>
"#;

/// Writes the page.
///
/// # Errors
/// One sentence.
pub fn write(out: &Path) -> Result<(), String> {
    let mut taken = Vec::new();
    for (index, episode) in EPISODES.iter().enumerate() {
        if let Some(pair) = Pair::read(out, index + 1, episode)? {
            taken.push(pair);
        }
    }
    if taken.is_empty() {
        return Err(format!(
            "{}: there is no episode in it; take one with flame take --episode",
            out.display()
        ));
    }
    let path = out.join("index.html");
    fs::write(&path, page(&taken)).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Both sides of an episode.
struct Pair {
    number: usize,
    episode: &'static Episode,
    before: Meta,
    after: Meta,
}

impl Pair {
    /// `None` when it has not been taken.
    fn read(out: &Path, number: usize, episode: &'static Episode) -> Result<Option<Self>, String> {
        let folder = |what| out.join(episodes::folder(number, episode, what));
        if !folder("before").is_dir() || !folder("after").is_dir() {
            return Ok(None);
        }
        let (before, after) = (Meta::read(&folder("before"))?, Meta::read(&folder("after"))?);
        Ok(Some(Self { number, episode, before, after }))
    }

    fn folder(&self, what: &str) -> String {
        episodes::folder(self.number, self.episode, what)
    }

    /// Change of the processor time per request as a share; negative is less.
    fn change(&self) -> Option<f64> {
        let us = |meta: &Meta| meta.result.cpu_us_per_request;
        Some(us(&self.after)? / us(&self.before)? - 1.0)
    }

    fn is_comparable(&self) -> bool {
        self.before.result.offered_was_reached && self.after.result.offered_was_reached
    }

    /// Whether every round of one side took more than every round of the other. Otherwise they may be
    /// equal, and nobody is named the winner.
    fn is_apart(&self) -> bool {
        let range = |meta: &Meta| {
            let rounds = &meta.result.cpu_us_rounds;
            Some((*rounds.first()?, *rounds.last()?))
        };
        let apart = |(low, high): (f64, f64), (other_low, other_high)| high < other_low || other_high < low;
        range(&self.before).zip(range(&self.after)).is_some_and(|(before, after)| apart(before, after))
    }

    /// Of all groups, the one whose time per request differs most.
    fn largest_group_change(&self) -> String {
        let us = |meta: &Meta, name: &str| {
            let share =
                meta.sampling.groups.iter().find(|(known, _)| known == name).map_or(0.0, |(_, share)| *share);
            share * meta.result.cpu_us_per_request.unwrap_or(0.0)
        };
        let groups = Group::ALL.map(|group| {
            let name = group.name();
            (name, us(&self.before, name), us(&self.after, name))
        });
        let size = |(_, before, after): &(&str, f64, f64)| (after - before).abs();
        let largest = groups.into_iter().max_by(|one, other| size(one).total_cmp(&size(other)));
        largest.map_or_else(String::new, |(name, before, after)| {
            format!("The largest change is in {name}: {before:.1} to {after:.1} us")
        })
    }

    /// What was measured, in a few sentences.
    fn finding(&self) -> String {
        let Some(change) = self.change() else {
            return "Measured here: the processor time per request is not known.".into();
        };
        let sampler = &self.after.sampling.sampler;
        let size = match change {
            _ if !self.is_apart() => "no difference beyond what equal runs differ by".to_owned(),
            change if change < 0.0 => format!("{:.0} % less processor time per request", -change * 100.0),
            change => format!("{:.0} % more processor time per request", change * 100.0),
        };
        let result = format!(
            "Measured here ({sampler}, commit {}): {size} (before {}, after {} us in the rounds). {}.",
            escape(&self.after.commit),
            rounds(&self.before),
            rounds(&self.after),
            self.largest_group_change()
        );
        match &self.episode.original {
            None => result,
            Some(original) => {
                let verdict = match (self.is_apart(), change < 0.0) {
                    (true, true) => "agrees with",
                    (true, false) => "contradicts",
                    (false, _) => "does not show the gain of",
                };
                format!("{result} That {verdict} the original of 2015 ({original}).")
            }
        }
    }
}

/// The processor time per request of every round.
fn rounds(meta: &Meta) -> String {
    let times: Vec<String> = meta.result.cpu_us_rounds.iter().map(|us| format!("{us:.1}")).collect();
    times.join(" / ")
}

fn page(taken: &[Pair]) -> String {
    let mut html = HEAD.to_owned();
    html += "<table>\n<tr><th>episode<th>nodes<th>offered/s<th>reached/s<th>CPU us/request<th>change<th>p50 ms<th>p99 ms</tr>\n";
    taken.iter().for_each(|pair| html += &table_row(pair));
    html += "</table>\n";
    taken.iter().for_each(|pair| html += &section(pair));
    html + "</body>\n</html>\n"
}

fn table_row(pair: &Pair) -> String {
    let both = |value: &dyn Fn(&Meta) -> String| format!("{} → {}", value(&pair.before), value(&pair.after));
    let us = |meta: &Meta| meta.result.cpu_us_per_request.map_or("?".into(), |us| format!("{us:.1}"));
    let change = pair.change().map_or("?".into(), |change| format!("{:+.0} %", change * 100.0));
    format!(
        "<tr><td><a href=\"#{name}\">{number}. {name}</a><td>{nodes}<td>{offered}<td>{reached}<td>{us}<td>{change}<td>{p50}<td>{p99}</tr>\n",
        number = pair.number,
        name = pair.episode.name,
        nodes = pair.after.load.nodes,
        offered = pair.after.load.rate_offered,
        reached = both(&|meta| format!("{:.0}", meta.result.rate_reached)),
        us = both(&us),
        p50 = both(&|meta| milliseconds(meta.result.p50_ms)),
        p99 = both(&|meta| milliseconds(meta.result.p99_ms)),
    )
}

fn section(pair: &Pair) -> String {
    let mut html = String::new();
    let Pair { number, episode, before, after } = pair;
    let settings = |meta: &Meta| escape(&meta.settings.join(" "));
    let figure = |folder: &str, file: &str, caption: &str| {
        format!(
            "<figure><a href=\"{folder}/{file}\"><img loading=\"lazy\" alt=\"{caption}\" src=\"{folder}/{file}\"></a><figcaption>{caption}</figcaption></figure>\n"
        )
    };
    writeln!(html, "<h2 id=\"{}\">{number}. {}</h2>", episode.name, escape(episode.title))
        .and_then(|()| writeln!(html, "<p>{}</p>\n<p>{}</p>", escape(episode.look_at), pair.finding()))
        .expect("a string takes everything");
    if !pair.is_comparable() {
        html += "<p class=\"warning\">The offered rate was not reached, so the two sides did different work.</p>\n";
    }
    html += "<div class=\"pair\">\n";
    html += &figure(&pair.folder("before"), FLAME_FILE, &format!("before: {}", settings(before)));
    html += &figure(&pair.folder("after"), FLAME_FILE, &format!("after: {}", settings(after)));
    let difference = pair.folder("diff");
    html += &figure(&difference, FORWARD_FILE, "before to after, in the shape of after");
    html += &figure(&difference, BACKWARD_FILE, "before to after, in the shape of before");
    html +=
        &format!("</div>\n<p><a href=\"{difference}/{TABLE_FILE}\">The tables: groups and frames.</a></p>\n");
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
