//! `run PLAN`: one plan from one or several hosts, with the results brought home.
//!
//! Hosts take turns: a plan empties the cluster and judges what it reads, which another's writes would spoil. The test
//! client's own agents are for load from several machines at once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::on_host::{self, Brought, Order, Waited};
use super::record::{self, Ending, From, LAYOUT, Run, Server};
use super::zone;
use crate::inventory::{self, Host, Inventory};
use crate::remote::Fleet;
use crate::report::{overview, results};
use crate::{Failure, when};

/// Bytes of a plan's file at most.
const PLAN_BYTES_MAX: u64 = 1 << 20;
/// Where `deploy` puts the test client.
const PROGRAM_DEFAULT: &str = "current/violet-testclient";

/// Describes `run`.
pub fn command() -> Command {
    Command::new("run")
        .about("Run a plan of the test client on hosts, against the nodes of the inventory, and bring its result home")
        .args(args())
}

/// What `run` and `schedule` share.
pub fn args() -> Vec<Arg> {
    let mut args = vec![
        Arg::new("plan")
            .value_name("PLAN")
            .required(true)
            .help("A shipped plan of the test client, or a TOML file here (a name with a dot or a slash)."),
    ];
    args.extend(inventory::args());
    args.extend([
        Arg::new("from")
            .long("from")
            .value_name("host,…")
            .help("The hosts that make the load, one after the other [default: the first].")
            .value_delimiter(','),
        Arg::new("from-regions")
            .long("from-regions")
            .action(ArgAction::SetTrue)
            .conflicts_with("from")
            .help("One host of each region makes load, the first of it, one after the other."),
        Arg::new("set")
            .long("set")
            .value_name("name=value")
            .action(ArgAction::Append)
            .help("Changes a word of the plan, as the test client's own --set."),
        Arg::new("limit")
            .long("limit")
            .value_name("seconds")
            .help("A run that takes longer is ended.")
            .default_value("3600")
            .value_parser(value_parser!(u64).range(1..=86_400)),
        Arg::new("program")
            .long("program")
            .value_name("file")
            .help("violet-testclient on the hosts, below their dir or absolute.")
            .default_value(PROGRAM_DEFAULT),
    ]);
    args
}

/// What every run of one command line has in common.
pub struct Campaign {
    /// The inventory.
    pub inventory: Inventory,
    /// The hosts that make load, by index in the inventory.
    pub from: Vec<usize>,
    /// Where runs are kept.
    pub directory: PathBuf,
    plan: String,
    plan_text: Option<Vec<u8>>,
    servers: Vec<Server>,
    words: Vec<String>,
    program: String,
    limit: Duration,
}

impl Campaign {
    /// Reads the options.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    pub fn from_matches(matches: &ArgMatches) -> Result<Self, Failure> {
        let inventory = Inventory::from_matches(matches)?;
        let plan = matches.get_one::<String>("plan").expect("it is required");
        let words = matches.get_many::<String>("set").into_iter().flatten();
        Ok(Self {
            from: from(&inventory, matches)?,
            servers: servers(&inventory)?,
            directory: inventory::local_dir(matches),
            plan: plan_name(plan)?,
            plan_text: plan_text(plan)?,
            words: words.flat_map(|change| ["--set".to_owned(), change.clone()]).collect(),
            program: matches.get_one::<String>("program").expect("it has a default").clone(),
            limit: Duration::from_secs(*matches.get_one::<u64>("limit").expect("it has a default")),
            inventory,
        })
    }

    /// Runs the plan from these hosts in turn; the record, with every ending that can be known.
    ///
    /// # Errors
    /// What cannot be written here.
    pub fn perform(&self, fleet: &Fleet, hosts: &[usize]) -> Result<Run, Failure> {
        let started = when::now_unix_seconds();
        let hosts: Vec<&Host> = hosts.iter().map(|at| &self.inventory.hosts[*at]).collect();
        let mut run = self.record(started, &hosts)?;
        run.save(&self.directory)?;
        let order = self.order(&run.id);
        eprintln!("run {}; should this be interrupted: violet-testbed fetch {}", run.id, run.id);
        let mut going_on: Option<&str> = None;
        for (from, host) in run.from.iter_mut().zip(&hosts) {
            from.ending = match going_on {
                Some(other) => {
                    Ending::Failed(format!("not begun: the run from {other} may still be going on"))
                }
                None => self.perform_from(fleet, host, &order)?,
            };
            if from.ending == Ending::Open {
                going_on = Some(&host.name);
            }
        }
        run.save(&self.directory)?;
        Ok(run)
    }

    /// Runs the plan from one host; how it ended there. Open means that the host was lost on the way.
    fn perform_from(&self, fleet: &Fleet, host: &Host, order: &Order) -> Result<Ending, Failure> {
        if let Err(error) = on_host::start(fleet, host, order) {
            return Ok(Ending::Failed(error.to_string()));
        }
        let waited = on_host::wait(fleet, host, order);
        // A run that was ended may have left something worth reading.
        let brought = on_host::fetch(fleet, host, &order.id);
        let kept = match &brought {
            Ok(brought) => keep(&self.directory, &order.id, &host.name, brought)?,
            Err(error) => {
                eprintln!("{}: {error}", host.name);
                Ending::Open
            }
        };
        Ok(match waited {
            Ok(Waited::Ended) => kept,
            Ok(Waited::Gone) => {
                Ending::Failed("the test client is gone without a status; has the host restarted?".to_owned())
            }
            Ok(Waited::Overdue) => {
                Ending::Failed(format!("was ended: not done after {} s, see --limit", self.limit.as_secs()))
            }
            Err(error) => {
                eprintln!("{}: {error}", host.name);
                kept
            }
        })
    }

    fn record(&self, started_unix_seconds: u64, hosts: &[&Host]) -> Result<Run, String> {
        let from = hosts.iter().map(|host| {
            let zone = zone::of(host)?;
            Ok(From {
                name: host.name.clone(),
                site: host.site.clone().unwrap_or_else(|| host.name.clone()),
                region: host.region.clone().unwrap_or_default(),
                local_minutes: zone.map(|zone| zone::minutes_ahead(&zone, started_unix_seconds)),
                ending: Ending::Open,
            })
        });
        Ok(Run {
            layout: LAYOUT,
            id: self.free_id(started_unix_seconds),
            plan: self.plan.clone(),
            started_unix_seconds,
            servers: self.servers.clone(),
            from: from.collect::<Result<Vec<From>, String>>()?,
        })
    }

    /// A name that no run here has: two may begin within one second.
    fn free_id(&self, started: u64) -> String {
        let id = format!("{}-{}", when::in_name(started), self.plan);
        let is_free = |id: &String| !self.directory.join("runs").join(id).exists();
        let more = (2..).map(|number| format!("{id}-{number}"));
        std::iter::once(id.clone()).chain(more).find(is_free).expect("numbers do not end")
    }

    fn order(&self, id: &str) -> Order {
        let servers: Vec<String> = self.servers.iter().map(|server| server.address.to_string()).collect();
        Order {
            id: id.to_owned(),
            plan_name: self.plan_text.is_none().then(|| self.plan.clone()),
            plan_text: self.plan_text.clone().unwrap_or_default(),
            servers: servers.join(","),
            words: self.words.clone(),
            program: self.program.clone(),
            limit: self.limit,
        }
    }
}

/// Does `run`.
///
/// # Errors
/// Wrong options, in one line.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let campaign = Campaign::from_matches(matches)?;
    let fleet = Fleet::new()?;
    let run = campaign.perform(&fleet, &campaign.from)?;
    tell(&campaign.directory, &run);
    Ok(ExitCode::from(u8::from(!is_good(&run))))
}

/// Prints how a run went, failures on stderr.
pub fn tell(directory: &Path, run: &Run) {
    for from in &run.from {
        match &from.ending {
            Ending::Failed(reason) => eprintln!("{}: {reason}", from.name),
            Ending::Open => eprintln!("{}: still runs", from.name),
            Ending::Ended(0) => {}
            Ending::Ended(status) => eprintln!(
                "{}: the test client ended with status {status}; see {}",
                from.name,
                run.folder(directory).join(&from.name).join("out").display()
            ),
        }
    }
    let (measured, faults) = results::load(directory, std::slice::from_ref(run));
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    print!("{}", overview::text(&measured));
    println!("Kept in {}", run.folder(directory).display());
}

/// Whether every host ended well.
pub fn is_good(run: &Run) -> bool {
    run.from.iter().all(|from| from.ending == Ending::Ended(0))
}

/// Writes what a host brought below the run's folder.
///
/// # Errors
/// The file that could not be written.
pub fn keep(directory: &Path, id: &str, host: &str, brought: &Brought) -> Result<Ending, String> {
    let folder = directory.join("runs").join(id).join(host);
    record::write(&folder.join("out"), &brought.out)?;
    if !brought.result.is_empty() {
        record::write(&folder.join("result.json"), &brought.result)?;
    }
    Ok(brought.status.map_or(Ending::Open, Ending::Ended))
}

/// The hosts that make load.
fn from(inventory: &Inventory, matches: &ArgMatches) -> Result<Vec<usize>, Failure> {
    if inventory.hosts.is_empty() {
        return Err("the inventory has no host".into());
    }
    if matches.get_flag("from-regions") {
        let is_first = |at: &usize| {
            let region = &inventory.hosts[*at].region;
            inventory.hosts[..*at].iter().all(|before| before.region != *region)
        };
        return Ok((0..inventory.hosts.len()).filter(is_first).collect());
    }
    let Some(names) = matches.get_many::<String>("from") else { return Ok(vec![0]) };
    let place = |name: &String| {
        let known: Vec<&str> = inventory.hosts.iter().map(|host| host.name.as_str()).collect();
        let place = known.iter().position(|host| host == name);
        place.ok_or_else(|| format!("--from: there is no host '{name}'; hosts: {}", known.join(", ")).into())
    };
    let mut places: Vec<usize> = names.map(place).collect::<Result<_, Failure>>()?;
    places.sort_unstable();
    places.dedup();
    Ok(places)
}

fn servers(inventory: &Inventory) -> Result<Vec<Server>, Failure> {
    let servers = inventory.hosts.iter().map(|host| {
        Ok(Server {
            name: host.name.clone(),
            address: host.node()?,
            site: host.site.clone().unwrap_or_else(|| host.name.clone()),
            region: host.region.clone().unwrap_or_default(),
        })
    });
    servers.collect()
}

fn is_file(plan: &str) -> bool {
    plan.contains(['/', '.'])
}

/// The plan's name as it stands in a run's name.
fn plan_name(plan: &str) -> Result<String, Failure> {
    let stem =
        if is_file(plan) { Path::new(plan).file_stem().and_then(|stem| stem.to_str()) } else { Some(plan) };
    match stem.filter(|stem| on_host::is_id(stem) && stem.len() <= 50) {
        Some(stem) => Ok(stem.to_owned()),
        None => {
            Err(format!("plan {plan}: a name of up to 50 letters, digits, '-' and '_' would be right").into())
        }
    }
}

fn plan_text(plan: &str) -> Result<Option<Vec<u8>>, Failure> {
    if !is_file(plan) {
        return Ok(None);
    }
    let bytes = std::fs::read(plan).map_err(|error| format!("cannot read the plan {plan}: {error}"))?;
    match bytes.len() as u64 <= PLAN_BYTES_MAX {
        true => Ok(Some(bytes)),
        false => Err(format!("the plan {plan} has {} bytes, more than {PLAN_BYTES_MAX}", bytes.len()).into()),
    }
}
