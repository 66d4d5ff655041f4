//! `fetch`: brings home what hosts have of runs, after a connection broke or this machine slept.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};

use super::command::{is_good, keep, tell};
use super::on_host;
use super::record::{Ending, Run};
use crate::Failure;
use crate::inventory::{self, Host, Inventory};
use crate::remote::{Fleet, HostError};

/// Describes `fetch`.
pub fn command() -> Command {
    Command::new("fetch")
        .about("Bring home what hosts have of runs that were interrupted here")
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .num_args(0..)
                .help("Names of runs [default: all whose end is not known]."),
        )
        .args(inventory::args())
}

/// Does `fetch`.
///
/// # Errors
/// An unknown run, or what cannot be written here.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let inventory = Inventory::from_matches(matches)?;
    let directory = inventory::local_dir(matches);
    let runs = match matches.get_many::<String>("run") {
        Some(names) => names.map(|name| load(&directory, name)).collect::<Result<Vec<Run>, Failure>>()?,
        None => Run::load_all(&directory)?
            .into_iter()
            .filter(|run| run.from.iter().any(|from| !is_known(&from.ending)))
            .collect(),
    };
    if runs.is_empty() {
        println!("Nothing to fetch: the end of every run in {} is known.", directory.display());
        return Ok(ExitCode::SUCCESS);
    }
    let fleet = Fleet::new()?;
    let mut all_good = true;
    for mut run in runs {
        fetch(&fleet, &inventory, &directory, &mut run)?;
        run.save(&directory)?;
        tell(&directory, &run);
        all_good &= is_good(&run);
    }
    Ok(ExitCode::from(u8::from(!all_good)))
}

fn is_known(ending: &Ending) -> bool {
    matches!(ending, Ending::Ended(_))
}

fn load(directory: &std::path::Path, name: &str) -> Result<Run, Failure> {
    if !on_host::is_id(name) {
        return Err(format!("'{name}' is no run's name; 'violet-testbed run' prints it").into());
    }
    Ok(Run::load(directory, name)?)
}

/// Asks the hosts of one run whose ending is not known.
fn fetch(
    fleet: &Fleet,
    inventory: &Inventory,
    directory: &std::path::Path,
    run: &mut Run,
) -> Result<(), Failure> {
    let open: Vec<usize> = (0..run.from.len()).filter(|at| !is_known(&run.from[*at].ending)).collect();
    let mut hosts: Vec<&Host> = Vec::new();
    for at in open {
        match inventory.host(&run.from[at].name) {
            Some(host) => hosts.push(host),
            None => run.from[at].ending = Ending::Failed("is no longer in the inventory".to_owned()),
        }
    }
    let id = run.id.clone();
    let brought = fleet.on_all(&hosts, hosts.len(), |host| match on_host::list(fleet, host)?.contains(&id) {
        true => on_host::fetch(fleet, host, &id),
        false => Err(HostError::Here("has nothing of this run".to_owned())),
    });
    for (host, brought) in brought {
        let from =
            run.from.iter_mut().find(|from| from.name == host.name).expect("hosts come from this list");
        from.ending = match brought {
            Ok(brought) => keep(directory, &id, &host.name, &brought)?,
            Err(error) => Ending::Failed(error.to_string()),
        };
    }
    Ok(())
}
