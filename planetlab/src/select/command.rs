//! The commands `rank` and `select`: options in, sentences out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::candidate::Field;
use super::choice::{Choice, choose};
use super::filter::{Limits, filter};
use super::search::{Score, Wish};
use crate::inventory::{self, Inventory};
use crate::probe::record::Probe;
use crate::probe::{store, table};
use crate::{Failure, when};

/// Describes `rank`.
pub fn rank_command() -> Command {
    Command::new("rank")
        .about("Order the probed hosts, the best first, and say why some cannot be taken")
        .args(inventory::args())
        .args(limit_args())
}

/// Describes `select`.
pub fn command() -> Command {
    Command::new("select")
        .about("Choose the hosts that make the best cluster: by the worst pair, then by the worst node")
        .arg(
            Arg::new("count")
                .value_name("N")
                .required(true)
                .help("Hosts of the cluster.")
                .value_parser(value_parser!(u16).range(1..)),
        )
        .args(inventory::args())
        .args(limit_args())
        .arg(
            Arg::new("mix")
                .long("mix")
                .value_name("region=hosts,…")
                .help("So many hosts of each region, such as eu=5,na=5; the rest comes from other regions.")
                .value_delimiter(','),
        )
        .arg(
            Arg::new("share-sites")
                .long("share-sites")
                .action(ArgAction::SetTrue)
                .help("Let several hosts of one site be taken."),
        )
        .arg(
            Arg::new("write")
                .long("write")
                .value_name("file")
                .help("Write an inventory of the chosen hosts, with the gossip preset that fits.")
                .value_parser(value_parser!(PathBuf)),
        )
}

fn limit_args() -> Vec<Arg> {
    let limits = Limits::default();
    let number = |name: &'static str, value: String, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("number")
            .help(help)
            .default_value(value)
            .value_parser(value_parser!(f64))
    };
    vec![
        number("cores-min", limits.cores_min.to_string(), "Fewest processors."),
        number("load-max", limits.load_per_core_max.to_string(), "Highest load average for each processor."),
        number("memory-min", limits.memory_free_mib_min.to_string(), "Least free memory, in MiB."),
        number("disk-min", limits.disk_free_mib_min.to_string(), "Least free disk, in MiB."),
        number("loss-max", (100.0 * limits.loss_max).to_string(), "Most lost round trips, in per cent."),
        number(
            "absent-max",
            (100.0 * limits.absent_max).to_string(),
            "Most earlier probes without it, in per cent.",
        ),
    ]
}

fn limits(matches: &ArgMatches) -> Result<Limits, Failure> {
    let number = |name: &str| {
        let value = *matches.get_one::<f64>(name).expect("the flag has a default");
        match (0.0..=1e12).contains(&value) {
            true => Ok(value),
            false => Err(format!("--{name} {value}: a number that is not negative would be right")),
        }
    };
    Ok(Limits {
        cores_min: number("cores-min")? as usize,
        load_per_core_max: number("load-max")?,
        memory_free_mib_min: number("memory-min")? as u64,
        disk_free_mib_min: number("disk-min")? as u64,
        loss_max: number("loss-max")? / 100.0,
        absent_max: number("absent-max")? / 100.0,
    })
}

/// Does `rank`.
///
/// # Errors
/// No probe, or wrong options.
pub fn run_rank(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (probes, _) = probes(matches)?;
    let field = Field::new(&probes);
    print!("{}{}", head(&probes), ranking(&field, &filter(&field, &limits(matches)?)));
    Ok(ExitCode::SUCCESS)
}

/// Does `select`.
///
/// # Errors
/// No probe, or wrong options.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (probes, inventory) = probes(matches)?;
    let field = Field::new(&probes);
    let wish = wish(matches, &field)?;
    match choose(&field, &limits(matches)?, &wish) {
        Err((why, reasons)) => {
            print!("{}", reasons_text(&field, &reasons, |_| "left"));
            eprintln!("violet-testbed select: {why}");
            Ok(ExitCode::FAILURE)
        }
        Ok(choice) => {
            print!("{}{}", head(&probes), choice_text(&field, &choice));
            if let Some(file) = matches.get_one::<PathBuf>("write") {
                write_inventory(inventory, &field, &choice, file)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The kept probes, with only the hosts of the inventory in the latest, and the inventory.
fn probes(matches: &ArgMatches) -> Result<(Vec<Probe>, Inventory), Failure> {
    let inventory = Inventory::from_matches(matches)?;
    let directory = inventory::local_dir(matches);
    let probes = store::load_all(&directory)?;
    let Some(latest) = probes.last() else {
        return Err(format!("{} has no probe: 'violet-testbed probe' makes one", directory.display()).into());
    };
    let unprobed =
        inventory.hosts.iter().filter(|host| latest.hosts.iter().all(|known| known.name != host.name));
    unprobed.for_each(|host| eprintln!("{}: not in the latest probe", host.name));
    let mut probes = probes;
    if let Some(latest) = probes.last_mut() {
        // Indices stand for places in the list, so who is no longer in the inventory stays, as one that is not there.
        for host in latest.hosts.iter_mut().filter(|host| inventory.host(&host.name).is_none()) {
            host.report = None;
            host.failure = Some("is not in the inventory, or not among --only".to_owned());
        }
    }
    Ok((probes, inventory))
}

fn wish(matches: &ArgMatches, field: &Field) -> Result<Wish, Failure> {
    let count = usize::from(*matches.get_one::<u16>("count").expect("it is required"));
    let mut mix = BTreeMap::new();
    for text in matches.get_many::<String>("mix").into_iter().flatten() {
        let parsed =
            text.split_once('=').and_then(|(region, hosts)| Some((region, hosts.parse::<usize>().ok()?)));
        let (region, hosts) =
            parsed.ok_or_else(|| format!("--mix {text}: region=hosts, such as eu=5, would be right"))?;
        if field.hosts.iter().all(|host| host.region != region) {
            let mut known: Vec<&str> = field.hosts.iter().map(|host| host.region.as_str()).collect();
            known.sort_unstable();
            known.dedup();
            return Err(format!(
                "--mix {text}: no host is of region {region}; regions: {}",
                known.join(", ")
            )
            .into());
        }
        mix.insert(region.to_owned(), hosts);
    }
    let sum: usize = mix.values().sum();
    if count < sum {
        return Err(format!("--mix wants {sum} hosts, more than the {count} of the cluster").into());
    }
    Ok(Wish { count, mix, shares_sites: matches.get_flag("share-sites") })
}

fn head(probes: &[Probe]) -> String {
    let latest = probes.last().map(|probe| when::for_people(probe.started_unix_seconds)).unwrap_or_default();
    format!("By the probe of {latest} and {} before it, older ones weighing less.\n\n", probes.len() - 1)
}

/// Hosts in the order of their mean cost to the others that can be taken.
fn ranking(field: &Field, faults: &[Option<String>]) -> String {
    let able: Vec<usize> = (0..faults.len()).filter(|at| faults[*at].is_none()).collect();
    let cost = |at: usize| {
        table::median(able.iter().filter(|other| **other != at).map(|other| field.cost_ms(at, *other)))
    };
    let mut order = able.clone();
    order.sort_by(|a, b| cost(*a).unwrap_or(0.0).total_cmp(&cost(*b).unwrap_or(0.0)));
    let mut text = String::new();
    for (place, at) in order.iter().enumerate() {
        let host = &field.hosts[*at];
        let worst = able.iter().filter(|other| *other != at).map(|other| field.cost_ms(*at, *other));
        let _ = writeln!(
            text,
            "{:>3}. {} ({}, {}): {:.1} ms to the middle one of the others, {:.1} ms to the worst",
            place + 1,
            host.name,
            host.site,
            if host.region.is_empty() { "no region" } else { &host.region },
            cost(*at).unwrap_or(0.0),
            worst.fold(0.0, f64::max)
        );
    }
    for (at, fault) in faults.iter().enumerate() {
        if let Some(fault) = fault {
            let _ = writeln!(text, "  -  {}: {fault}", field.hosts[at].name);
        }
    }
    text
}

fn reasons_text(field: &Field, reasons: &[String], word: impl Fn(usize) -> &'static str) -> String {
    let lines = reasons
        .iter()
        .enumerate()
        .map(|(at, reason)| format!("{} {}: {reason}\n", word(at), field.hosts[at].name));
    let mut lines: Vec<String> = lines.collect();
    // "taken" first; names stay in the order of the inventory.
    lines.sort_by_key(|line| line.starts_with("left"));
    lines.concat()
}

fn choice_text(field: &Field, choice: &Choice) -> String {
    let word = |at: usize| if choice.taken.contains(&at) { "taken" } else { "left " };
    let mut text = reasons_text(field, &choice.reasons, word);
    let names: Vec<&str> = choice.taken.iter().map(|at| field.hosts[*at].name.as_str()).collect();
    let Score { pair_ms, node_ms, mean_ms } = choice.score;
    if let Some((one, other)) = choice.worst_pair {
        let (one, other) = (&field.hosts[one].name, &field.hosts[other].name);
        let _ = writeln!(
            text,
            "\nA request between the worst pair ({one}, {other}) costs {pair_ms:.1} ms, to and from the worst node \
             {node_ms:.1} ms on average, {mean_ms:.1} ms over all (p95, waits for repeats after loss included)."
        );
    }
    let _ = writeln!(text, "Gossip preset that fits: {}\n--only {}", choice.gossip, names.join(","));
    text
}

fn write_inventory(
    mut inventory: Inventory,
    field: &Field,
    choice: &Choice,
    file: &PathBuf,
) -> Result<(), Failure> {
    inventory.hosts.retain(|host| choice.taken.iter().any(|at| field.hosts[*at].name == host.name));
    inventory.gossip = Some(choice.gossip.to_owned());
    fs::write(file, inventory.to_toml())
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    println!("Written to {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::samples;

    #[test]
    fn the_texts_name_every_host_with_its_reason() {
        let mut probe = samples::probe(&[&[0.0, 10.0, 30.0], &[10.0, 0.0, 20.0], &[30.0, 20.0, 0.0]]);
        let field = Field::new(&[probe.clone()]);
        let choice = choose(&field, &Limits::default(), &Wish { count: 2, ..Wish::default() }).unwrap();
        let text = choice_text(&field, &choice);
        let expected = "taken h0: at worst 10.0 ms p95, 0.0 % loss of 10 KB, with h1\n\
             taken h1: at worst 10.0 ms p95, 0.0 % loss of 10 KB, with h0\n\
             left  h2: instead of h0 the worst pair would cost 20.0 ms, not 10.0\n\n\
             A request between the worst pair (h0, h1) costs 10.0 ms, to and from the worst node 10.0 ms on average, \
             10.0 ms over all (p95, waits for repeats after loss included).\n\
             Gossip preset that fits: lan\n--only h0,h1\n";
        assert_eq!(text, expected);
        probe.hosts[0].report = None;
        probe.hosts[0].failure = Some("dead host".to_owned());
        let field = Field::new(&[probe]);
        let text = ranking(&field, &filter(&field, &Limits::default()));
        assert!(text.starts_with("  1. h1 (s1, na): 20.0 ms to the middle one of the others"), "{text}");
        assert!(text.ends_with("  -  h0: dead host\n"), "{text}");
    }
}
