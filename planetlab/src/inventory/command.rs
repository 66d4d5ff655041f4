//! `violet-testbed inventory`: shows, checks, imports and exports inventories.

use super::{Host, Inventory, args, import};
use crate::Failure;
use clap::{Arg, ArgMatches, Command, value_parser};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Describes the sub-command.
#[must_use]
pub fn command() -> Command {
    let file = |help: &'static str| {
        Arg::new("file").value_name("file").help(help).required(true).value_parser(value_parser!(PathBuf))
    };
    Command::new("inventory")
        .about("Shows, checks, imports and exports the list of hosts")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("show").about("Prints the hosts as a table").args(args()))
        .subcommand(
            Command::new("check")
                .about("Reads the file, looks up every host's address, and names what is wrong")
                .args(args()),
        )
        .subcommand(
            Command::new("import")
                .about("Makes an inventory from what another tool knows, on standard output or with --output")
                .arg(
                    Arg::new("from")
                        .long("from")
                        .value_name("kind")
                        .help(import::HELP)
                        .required(true)
                        .value_parser(import::KINDS),
                )
                .arg(
                    Arg::new("output")
                        .long("output")
                        .short('o')
                        .value_name("file")
                        .help("Where to write it; a file that exists is not overwritten.")
                        .value_parser(value_parser!(PathBuf)),
                )
                .arg(file("What to read; '-' is standard input.")),
        )
        .subcommand(
            Command::new("export")
                .about("Prints the hosts for another tool")
                .arg(
                    Arg::new("ansible")
                        .long("ansible")
                        .help("As an inventory of Ansible (INI).")
                        .required(true)
                        .action(clap::ArgAction::SetTrue),
                )
                .args(args()),
        )
}

/// Runs the sub-command.
///
/// # Errors
/// One line: an unreadable or wrong file, or one that exists and would be overwritten.
pub fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    match matches.subcommand() {
        Some(("show", matches)) => print!("{}", table(&Inventory::from_matches(matches)?)),
        Some(("check", matches)) => return check(&Inventory::from_matches(matches)?),
        Some(("import", matches)) => return import(matches),
        Some(("export", matches)) => print!("{}", ansible(&Inventory::from_matches(matches)?)),
        _ => unreachable!("clap demands one of the sub-commands above"),
    }
    Ok(ExitCode::SUCCESS)
}

fn import(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let kind = matches.get_one::<String>("from").expect("the flag is required");
    let file = matches.get_one::<PathBuf>("file").expect("the argument is required");
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).map_err(|error| format!("standard input: {error}"))?
    } else {
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?
    };
    let hosts = import::import(kind, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    let inventory = Inventory { path: file.clone(), gossip: None, settings: Default::default(), hosts };
    let written = inventory.to_toml();
    // What the other tool had may still be wrong for us, such as a name twice. The file is written all the same, to be mended.
    let is_good = match super::read::parse(matches.get_one::<PathBuf>("output").unwrap_or(file), &written) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("violet-testbed inventory: to be mended by hand: {error}");
            false
        }
    };
    match matches.get_one::<PathBuf>("output") {
        None => print!("{written}"),
        Some(path) => {
            use std::io::Write as _;
            let mut output =
                std::fs::File::create_new(path).map_err(|error| format!("{}: {error}", path.display()))?;
            output.write_all(written.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{}: {} hosts", path.display(), inventory.hosts.len());
        }
    }
    Ok(ExitCode::from(u8::from(!is_good)))
}

fn check(inventory: &Inventory) -> Result<ExitCode, Failure> {
    let wrong: Vec<String> = inventory.hosts.iter().filter_map(|host| host.node().err()).collect();
    for line in &wrong {
        eprintln!("{line}");
    }
    let sites: std::collections::BTreeSet<_> =
        inventory.hosts.iter().filter_map(|host| host.site.as_ref()).collect();
    println!(
        "{}: {} hosts, {} sites, {} without an address",
        inventory.path.display(),
        inventory.hosts.len(),
        sites.len(),
        wrong.len()
    );
    Ok(ExitCode::from(u8::from(!wrong.is_empty())))
}

fn table(inventory: &Inventory) -> String {
    let mut rows = vec![
        ["name", "ssh", "node", "site", "region", "provider", "cores", "MiB", "labels"].map(str::to_owned),
    ];
    rows.extend(inventory.hosts.iter().map(row));
    aligned(&rows)
}

fn row(host: &Host) -> [String; 9] {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let port = host.ssh_port.map(|port| format!(":{port}")).unwrap_or_default();
    let address = host.node_address.map_or_else(|| host.host.clone(), |address| address.to_string());
    [
        host.name.clone(),
        format!("{user}{}{port}", host.host),
        format!("{address}:{}", host.node_port),
        text(&host.site),
        text(&host.region),
        text(&host.provider),
        host.cores.map_or_else(|| "-".into(), |cores| cores.to_string()),
        host.memory_mib.map_or_else(|| "-".into(), |memory| memory.to_string()),
        host.labels.join(","),
    ]
}

/// Rows of cells as lines with columns of even width.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn ansible(inventory: &Inventory) -> String {
    let mut out = String::from("[violet]\n");
    for host in &inventory.hosts {
        write!(out, "{} ansible_host={}", host.name, host.host).expect("a string takes any text");
        let mut pair = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                let value = if value.contains(' ') { format!("'{value}'") } else { value };
                write!(out, " {name}={value}").expect("a string takes any text");
            }
        };
        pair("ansible_port", host.ssh_port.map(|port| port.to_string()));
        pair("ansible_user", host.user.clone());
        pair("ansible_ssh_private_key_file", host.identity.as_ref().map(|path| path.display().to_string()));
        let options: Vec<String> = host.ssh_options.iter().map(|option| format!("-o {option}")).collect();
        pair("ansible_ssh_common_args", (!options.is_empty()).then(|| options.join(" ")));
        pair("violet_site", host.site.clone());
        pair("violet_region", host.region.clone());
        pair("violet_dir", Some(host.dir.clone()));
        pair("violet_port", Some(host.node_port.to_string()));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ansible_gets_what_ssh_gets() {
        let mut host = Host::new("a", "h");
        host.ssh_port = Some(22);
        host.ssh_options = vec!["ProxyJump=gate".into()];
        let inventory =
            Inventory { path: "i".into(), gossip: None, settings: Default::default(), hosts: vec![host] };
        assert_eq!(
            ansible(&inventory),
            "[violet]\na ansible_host=h ansible_port=22 ansible_ssh_common_args='-o ProxyJump=gate' violet_dir=violet violet_port=4410\n"
        );
    }
}
