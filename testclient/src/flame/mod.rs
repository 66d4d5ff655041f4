//! Flame graphs: profiles of a cluster under a constant load, compared in pairs.
//!
//! A run starts a cluster ([`cluster`]), loads it at an offered rate ([`pace`]), samples its nodes
//! ([`sampler`]), shortens names ([`names`]) and writes a folder ([`take`], [`record`]). Two folders are
//! compared by [`diff`]; [`episodes`] says which pairs there are, [`index`] puts them on a page, and
//! [`check`] looks for what may not be on the hot path. Unlike the rest of this program, it knows
//! violet: its binary, its admin server and the names of its functions.

mod check;
pub mod cluster;
mod diff;
mod episodes;
mod groups;
mod index;
mod names;
mod pace;
mod picture;
mod record;
mod sampler;
mod stacks;
mod take;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::report::Table;

/// Options of `flame`.
#[derive(Clone, Debug, Args)]
pub struct FlameArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: FlameCommand,
}

/// What can be done.
#[derive(Clone, Debug, Subcommand)]
pub enum FlameCommand {
    /// Prints the episodes and their configurations.
    List,
    /// Takes an episode, or one configuration.
    Take(take::TakeArguments),
    /// Takes all episodes, and writes the page.
    All(AllArguments),
    /// Compares two profiles.
    Diff(diff::DiffArguments),
    /// Writes the page from the folders that are there.
    Index(IndexArguments),
    /// Fails if a short run shows socket set-up, formatting or allocation on the hot path.
    Check(check::CheckArguments),
}

/// Options of `all`.
#[derive(Clone, Debug, Args)]
pub struct AllArguments {
    /// Where the folders go.
    #[arg(long, default_value = "flamegraphs", value_name = "DIR")]
    pub out: PathBuf,
    /// How.
    #[command(flatten)]
    pub how: take::HowArguments,
}

/// Options of `index`.
#[derive(Clone, Debug, Args)]
pub struct IndexArguments {
    /// Where the folders are.
    #[arg(long, default_value = "flamegraphs", value_name = "DIR")]
    pub out: PathBuf,
}

/// Runs the command; whether nothing failed.
///
/// # Errors
/// Wrong usage or a missing means, in one sentence.
pub fn run(arguments: &FlameArguments) -> Result<bool, String> {
    match &arguments.command {
        FlameCommand::List => {
            println!("{}", list().text());
            Ok(true)
        }
        FlameCommand::Take(arguments) => take::run(arguments),
        FlameCommand::All(arguments) => all(arguments),
        FlameCommand::Diff(arguments) => diff::run(arguments),
        FlameCommand::Index(arguments) => index::write(&arguments.out).map(|()| true),
        FlameCommand::Check(arguments) => check::run(arguments),
    }
}

fn all(arguments: &AllArguments) -> Result<bool, String> {
    for (index, episode) in episodes::EPISODES.iter().enumerate() {
        take::take_episode(index + 1, episode, &arguments.how, &arguments.out)?;
    }
    index::write(&arguments.out)?;
    println!("see {}", arguments.out.join("index.html").display());
    Ok(true)
}

fn list() -> Table {
    let mut table = Table::new(&["episode", "before", "after", "what changes", "nodes", "requests/s"], 4);
    for (index, episode) in episodes::EPISODES.iter().enumerate() {
        table.row(vec![
            format!("{} {}", index + 1, episode.name),
            episode.before.config.to_owned(),
            episode.after.config.to_owned(),
            episode.title.to_owned(),
            episode.nodes.to_string(),
            episode.rate.to_string(),
        ]);
    }
    table
}
