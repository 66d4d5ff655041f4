//! The command line of the simulator: its flags, what they mean, and the command that repeats a run.

use super::Bugs;
use super::faults::Mood;
use super::played::Played;
use super::size::Size;
use super::swarm::{Options, Run};
use crate::time::Duration;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What a command line asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The first run.
    pub options: Options,
    /// How many seeds to run.
    pub seeds: u64,
    /// On how many threads at once; as many as there are cores if not given.
    pub threads: Option<NonZeroUsize>,
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    let flag = |name: &'static str, unit: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(unit).help(help)
    };
    let moods = Mood::ALL.map(Mood::name);
    Command::new("sim")
        .about("Simulates clusters that fail as the seed says, and checks what clients see")
        .arg(flag("seed", "number", "The first seed.").default_value("1").value_parser(value_parser!(u64)))
        .arg(
            flag("seeds", "runs", "How many seeds to run.")
                .default_value("1")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            flag("threads", "threads", "How many of them at once; the number of cores if not given.")
                .value_parser(value_parser!(NonZeroUsize)),
        )
        .arg(
            flag(
                "nodes",
                "nodes",
                "Number of nodes, 1 to 200, or a range such as 5-30, of which small ones are drawn as often \
                 as large ones (log-uniformly); chosen by the seed if not given.",
            )
            .value_parser(|text: &str| text.parse::<Size>()),
        )
        .arg(flag("mood", "mood", "What goes wrong; chosen by the seed if not given.").value_parser(moods))
        .arg(
            flag("seconds", "s", "For how long things go wrong, in virtual time, 1 to 3600.")
                .default_value("10")
                .value_parser(value_parser!(u64).range(1..=3_600)),
        )
        .arg(
            flag(
                "timeline",
                "file",
                "Play this scenario file (of planetlab/scenarios, say): its nodes, its network, and what happens to it.",
            )
            .conflicts_with_all(["nodes", "mood", "seconds", "count"]),
        )
        .arg(
            Arg::new("trace")
                .long("trace")
                .action(ArgAction::SetTrue)
                .help("Print every event; one seed after the other."),
        )
        .arg(
            Arg::new("count").long("count").action(ArgAction::SetTrue).help(
                "Print instead how many datagrams one request takes on a healthy cluster, kind by kind.",
            ),
        )
}

/// Whether the table of datagrams is wanted, and no run.
#[must_use]
pub fn wants_count(matches: &ArgMatches) -> bool {
    matches.get_flag("count")
}

/// The scenario file that is to be played.
#[must_use]
pub fn timeline(matches: &ArgMatches) -> Option<&str> {
    matches.get_one::<String>("timeline").map(String::as_str)
}

/// What the flags say, and the scenario that was read from the file of [`timeline`].
#[must_use]
pub fn request(matches: &ArgMatches, played: Option<Played>) -> Request {
    let number = |name: &str| *matches.get_one::<u64>(name).expect("the flag has a default");
    let mood = matches.get_one::<String>("mood");
    let is_traced = matches.get_flag("trace");
    let options = Options {
        seed: number("seed"),
        size: matches.get_one("nodes").copied(),
        mood: mood.and_then(|name| Mood::ALL.into_iter().find(|mood| mood.name() == name)),
        played: played.map(Arc::new),
        trouble: Duration::from_secs(number("seconds")),
        is_traced,
        bugs: Bugs::default(),
    };
    // The events of runs side by side would be mixed up.
    let threads = if is_traced { Some(NonZeroUsize::MIN) } else { matches.get_one("threads").copied() };
    Request { options, seeds: number("seeds"), threads }
}

/// The command that repeats a run, given the options of all runs that it was one of. What the seed has
/// chosen it chooses again, as long as it is asked the same; only a size drawn from a range is named.
#[must_use]
pub fn repeating(run: &Run, options: &Options) -> String {
    if let Some(played) = &options.played {
        return format!("violet sim --timeline {} --seed {}", played.file, run.seed);
    }
    let mut command = format!("violet sim --seed {} --seconds {}", run.seed, options.trouble.as_secs());
    if options.size.is_some() {
        command.push_str(&format!(" --nodes {}", run.nodes));
    }
    if let Some(mood) = options.mood {
        command.push_str(&format!(" --mood {}", mood.name()));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::super::swarm;
    use super::*;

    fn read(line: &str) -> Request {
        // Without the program's name: the subcommand stands for it.
        let words = line.split_whitespace().skip(1);
        request(&command().try_get_matches_from(words).expect("a good command line"), None)
    }

    #[test]
    fn the_command_that_is_printed_repeats_the_run() {
        for flags in ["--nodes 3-12 --seconds 2", "--nodes 4-9 --mood calm", "--nodes 5 --mood rough", ""] {
            let request = read(&format!("violet sim --seed 20 {flags} --threads 2"));
            let run = swarm::run(&request.options);
            let repeated = swarm::run(&read(&repeating(&run, &request.options)).options);
            assert_eq!((run.nodes, run.mood), (repeated.nodes, repeated.mood), "{flags}");
            assert_eq!(run.trace_hash, repeated.trace_hash, "{flags}");
        }
    }

    #[test]
    fn a_range_decides_nothing_but_the_number_of_nodes() {
        let options = |nodes: &str| read(&format!("violet sim --seed 5 --seconds 1 --nodes {nodes}")).options;
        let drawn = swarm::run(&options("3-12"));
        let given = swarm::run(&options(&drawn.nodes.to_string()));
        assert_eq!((drawn.trace_hash, drawn.mood), (given.trace_hash, given.mood));
    }

    #[test]
    fn events_of_two_runs_are_never_printed_at_once() {
        assert_eq!(read("violet sim --trace --threads 4").threads, Some(NonZeroUsize::MIN));
        assert_eq!(read("violet sim --threads 4").threads, NonZeroUsize::new(4));
        assert_eq!(read("violet sim").threads, None);
    }
}
