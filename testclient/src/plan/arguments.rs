//! Options of `run`.

use std::path::PathBuf;

use clap::Args;

use crate::reports::Outputs;

/// Options of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunPlanArguments {
    /// The plan: the name of a shipped one, or a TOML file.
    #[arg(value_name = "NAME|FILE")]
    pub plan: Option<String>,
    /// Prints the shipped plans and ends.
    #[arg(long)]
    pub list: bool,
    /// Prints the plan's text and ends.
    #[arg(long)]
    pub show: bool,
    /// Prints the steps and how long they take, and ends.
    #[arg(long)]
    pub dry_run: bool,
    /// The servers: a file with one host:port a line, or host:port,host:port,… They may be anybody's.
    #[arg(long, env = "VIOLET_SERVERS", value_name = "FILE|LIST")]
    pub servers: Option<String>,
    /// Violet's binary: without servers the plan starts nodes of its own on loopback.
    #[arg(long, value_name = "FILE")]
    pub violet: Option<PathBuf>,
    /// Number of nodes, instead of the plan's.
    #[arg(long, value_name = "COUNT")]
    pub nodes: Option<usize>,
    /// UDP port of the first own node; the others follow.
    #[arg(long, default_value_t = 27_410)]
    pub port: u16,
    /// Where member lists and logs of own nodes go.
    #[arg(long, default_value = ".violet/run", value_name = "DIR")]
    pub dir: PathBuf,
    /// Changes a word of the plan: NAME=VALUE in the defaults and wherever a step says it, STEP.NAME=VALUE in steps of
    /// that name or kind.
    #[arg(long = "set", value_name = "[STEP.]NAME=VALUE")]
    pub changes: Vec<String>,
    /// One more statement that decides the exit code, such as 'p99 < 20 ms in R16'.
    #[arg(long = "threshold", value_name = "STATEMENT")]
    pub thresholds: Vec<String>,
    /// Repeats a run: the same values and draws, not the timing, and not the names of keys, which are each run's own so
    /// that two at once do not meet. Drawn when neither given nor in the plan.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Agents that make the loads together, instead of this process.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub agents: Vec<String>,
    /// A file with the secret of the agents.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Writes the result to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Reports for people.
    #[command(flatten)]
    pub outputs: Outputs,
}
