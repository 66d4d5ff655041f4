//! The command line: what can be said, and the help that explains it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use violet_client::{Format, RetryPolicy};

const AFTER_HELP: &str = "\
Which servers are asked:
  put, get, remove, siblings, list    one server of the list, chosen at random, and another one
                                      if that does not reply; for a key, with --zero-hop, the
                                      members that hold it, the one that coordinates it first
  alive, pid, members, stats          every server of the list at the same time, one line each
  wipeout                             every server of the list: each forgets what it holds
  shutdown                            the one server of the list, or all of them with --all
  leave                               the one server of the list

Concurrent values (Violet only): `siblings KEY` prints a line for each value, `value VERSION TEXT` or
`value-hex VERSION HEX`, and then `context HEX`. `put KEY VALUE --context HEX` replaces the values that
this context has seen and no others, and prints the new context; an empty context has seen nothing. A
context has at most 1,000 bytes; it, its value and two bytes more have at most 10,000.

Exit codes:
  0  success
  1  there is no such key
  2  a mistake in the arguments or the server list, or a file that cannot be read or written
  3  a server did not reply in time or cannot be reached, or one that leaves did not go in time
  4  a server refused or answered nonsense";

/// A client for Violet and every other server of the course protocol.
#[derive(Debug, Parser)]
#[command(name = "violet-client", version, after_help = AFTER_HELP)]
pub struct Arguments {
    /// A file with one host:port a line, or HOST:PORT[,HOST:PORT...]
    #[arg(long, short, env = "VIOLET_SERVERS", global = true, value_name = "LIST")]
    pub servers: Option<String>,

    /// The generation of the protocol: raw for 2015 and 2016, protobuf for 2017 and later
    #[arg(long, short, default_value = "protobuf", global = true)]
    pub format: FormatName,

    /// Wait and retry as the clients of that year do: 3.6 s, 6.45 s or 3.8 s in all
    #[arg(long, default_value = "2019", global = true, value_name = "YEAR")]
    pub policy: PolicyName,

    /// Give up on a server after this many milliseconds in all; pauses for overload come on top
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub timeout_ms: Option<u64>,

    /// Ask no second server when the first one does not reply
    #[arg(long, global = true)]
    pub no_second_server: bool,

    /// For a key, learn which members hold it and ask them first (Violet only)
    #[arg(long, global = true)]
    pub zero_hop: bool,

    /// Print one JSON object a line, errors too
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Store a value under a key
    Put {
        #[command(flatten)]
        key: KeyArguments,
        /// The value; `-` or nothing means standard input
        #[arg(conflicts_with = "file", allow_negative_numbers = true)]
        value: Option<OsString>,
        /// Take the value from a file
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
        /// The version stored with the value (protobuf only)
        #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true)]
        version: i32,
        /// Replace only what this context has seen, and print the new one (Violet only); "" for nothing
        #[arg(long, value_name = "HEX")]
        context: Option<String>,
    },
    /// Print all concurrent values of a key and their context (Violet only)
    Siblings {
        #[command(flatten)]
        key: KeyArguments,
    },
    /// Write the value of a key to standard output
    Get {
        #[command(flatten)]
        key: KeyArguments,
    },
    /// Remove a key
    Remove {
        #[command(flatten)]
        key: KeyArguments,
    },
    /// Which servers answer
    Alive(Reach),
    /// The process ids of the servers
    Pid(Reach),
    /// How many members each server takes for alive
    Members(Reach),
    /// The members and their states, as one server sees them
    List,
    /// Who answers for a key, as one server sees it (Violet only)
    Where {
        #[command(flatten)]
        key: KeyArguments,
    },
    /// The counters of each server, as JSON
    Stats(Reach),
    /// Make the servers forget everything
    Wipeout(Reach),
    /// Make a server crash at once
    Shutdown {
        /// Shut down every server of the list
        #[arg(long)]
        all: bool,
    },
    /// Make a server hand its data to the others and leave, and wait until it is gone (Violet only)
    Leave {
        /// Wait this many seconds for it to go
        #[arg(long, default_value_t = 120, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait_seconds: u64,
    },
}

/// A key.
#[derive(Debug, Args)]
pub struct KeyArguments {
    /// The key, 1 to 32 bytes
    #[arg(allow_negative_numbers = true)]
    pub key: OsString,
    /// KEY is written in hex
    #[arg(long)]
    pub key_hex: bool,
}

/// How many servers to ask.
#[derive(Debug, Args)]
pub struct Reach {
    /// Ask only one server of the list, chosen at random
    #[arg(long)]
    pub one: bool,
}

/// A [`Format`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FormatName {
    Raw,
    Protobuf,
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Raw => Self::Raw,
            FormatName::Protobuf => Self::Protobuf,
        }
    }
}

/// A [`RetryPolicy`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PolicyName {
    #[value(name = "2016")]
    Course2016,
    #[value(name = "2019")]
    Course2019,
    #[value(name = "2021")]
    Course2021,
}

impl Arguments {
    /// The retries that were asked for.
    pub fn retry_policy(&self) -> RetryPolicy {
        let policy = match self.policy {
            PolicyName::Course2016 => RetryPolicy::course_2016(),
            PolicyName::Course2019 => RetryPolicy::course_2019(),
            PolicyName::Course2021 => RetryPolicy::course_2021(),
        };
        match self.timeout_ms {
            Some(millis) => policy.lasting(Duration::from_millis(millis)),
            None => policy,
        }
    }
}
