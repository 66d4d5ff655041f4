//! The command line of `bench`.

use std::path::PathBuf;

use clap::Args;

/// Options of `bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArguments {
    /// Prints the groups and ends.
    #[arg(long)]
    pub list: bool,
    /// Only these groups, comma separated; see --list.
    #[arg(long, value_delimiter = ',', value_name = "GROUPS")]
    pub only: Vec<String>,
    /// Only these value sizes.
    #[arg(long, value_delimiter = ',', value_name = "8,100,1000,10000")]
    pub value_bytes: Vec<usize>,
    /// How often every cell is measured; 9 if not given, 3 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: Option<u32>,
    /// A short run: fewer rounds of shorter samples. Too few for a verdict on anything close.
    #[arg(long)]
    pub quick: bool,
    /// How long a sample is measured, in milliseconds; 850 if not given, 300 with --quick.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub sample_ms: Option<u64>,
    /// Requests under way in closed loops, instead of what fits each value size. Servers with a small
    /// receive buffer may then lose some.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub window: Option<u32>,
    /// The violet binary; the one beside this program when not given.
    #[arg(long, value_name = "FILE")]
    pub violet: Option<PathBuf>,
    /// A setting for every Violet node, NAME=VALUE; see `violet serve --help`.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Where the servers' logs go.
    #[arg(long, default_value = ".violet/bench", value_name = "DIR")]
    pub dir: PathBuf,
    /// Port of the first server; five others follow.
    #[arg(long, default_value_t = 28_410, value_parser = clap::value_parser!(u16).range(1..=65_530))]
    pub port: u16,
    /// Processors of the measured server, comma separated; chosen and printed when not given.
    #[arg(long, value_delimiter = ',', value_name = "CPUS")]
    pub server_cpus: Vec<usize>,
    /// Processors of the generator, comma separated.
    #[arg(long, value_delimiter = ',', value_name = "CPUS")]
    pub client_cpus: Vec<usize>,
    /// Repeats a run: the same keys and draws, not the timing. Drawn and printed when not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Writes every sample, the verdicts and the setting to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the tables to this file; they are printed anyway.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// Options of the echo server.
#[derive(Clone, Copy, Debug, Args)]
pub struct EchoArguments {
    /// The port on loopback.
    pub port: u16,
}
