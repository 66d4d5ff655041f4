//! The inventory: which hosts there are, how ssh reaches them, and where their nodes listen.
//!
//! One TOML file, written by hand or by an importer. `[defaults]` holds what all hosts share, each `[[host]]` may
//! say otherwise, and `[node]` holds what every node is started with:
//!
//! ```toml
//! [defaults]
//! user = "me"
//! dir = "violet"                  # on the host, relative to the home directory, or absolute
//! node_port = 4410
//! ssh_options = ["StrictHostKeyChecking=accept-new"]
//!
//! [node]
//! gossip = "wan"
//! settings = { replicas = 3 }
//!
//! [[host]]
//! name = "fra1"
//! host = "fra1.example.org"
//! node_address = "203.0.113.7"    # else what `host` resolves to
//! site = "frankfurt"
//! ```
//!
//! Deliberately not here: secrets. `identity` is the path of a key; ssh's own configuration and agent hold the rest.

mod command;
mod import;
mod read;

use crate::Failure;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

pub use command::{aligned, command, run};

/// File that is read when none is named.
pub const FILE_DEFAULT: &str = "inventory.toml";
/// Directory on a host when the inventory names none; relative to the home directory.
pub const REMOTE_DIR_DEFAULT: &str = "violet";
/// Port of a node when the inventory names none.
pub const NODE_PORT_DEFAULT: u16 = 4410;
/// Most hosts. A cluster has at most some hundreds of members.
pub const HOSTS_MAX: usize = 1_000;

/// All hosts and what their nodes are started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Inventory {
    /// The file it was read from, for messages.
    pub path: PathBuf,
    /// Preset of the nodes' failure detector, `lan` or `wan`; none leaves it to the node's default.
    pub gossip: Option<String>,
    /// Settings of every node, name and value.
    pub settings: BTreeMap<String, String>,
    /// The hosts, in the file's order. Names are unique.
    pub hosts: Vec<Host>,
}

/// One host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// What people call it: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// What ssh is asked for: a name, an address or an alias of ssh's own configuration.
    pub host: String,
    /// Port of its sshd; none leaves it to ssh's configuration.
    pub ssh_port: Option<u16>,
    /// User; none leaves it to ssh's configuration.
    pub user: Option<String>,
    /// File of the private key; none leaves it to ssh's configuration and agent.
    pub identity: Option<PathBuf>,
    /// More options for ssh, each `Name=value`.
    pub ssh_options: Vec<String>,
    /// Where everything goes on the host.
    pub dir: String,
    /// IP address at which members and clients reach its node; none means that of `host`.
    pub node_address: Option<IpAddr>,
    /// IP address at which its node listens when that differs, as behind address translation.
    pub node_listen: Option<IpAddr>,
    /// UDP and TCP port of its node.
    pub node_port: u16,
    /// Where it stands. Hosts of one site fail together.
    pub site: Option<String>,
    /// Part of the world.
    pub region: Option<String>,
    /// Who runs it.
    pub provider: Option<String>,
    /// Words to choose by.
    pub labels: Vec<String>,
    /// Cores, as far as is known without asking it.
    pub cores: Option<u32>,
    /// Memory in MiB, as far as is known without asking it.
    pub memory_mib: Option<u64>,
}

impl Host {
    /// A host with everything left at its default.
    #[must_use]
    pub fn new(name: &str, host: &str) -> Self {
        Self {
            name: name.into(),
            host: host.into(),
            ssh_port: None,
            user: None,
            identity: None,
            ssh_options: Vec::new(),
            dir: REMOTE_DIR_DEFAULT.into(),
            node_address: None,
            node_listen: None,
            node_port: NODE_PORT_DEFAULT,
            site: None,
            region: None,
            provider: None,
            labels: Vec::new(),
            cores: None,
            memory_mib: None,
        }
    }

    /// Where members and clients reach its node. Looks a name up when the inventory has no address.
    ///
    /// # Errors
    /// One line that names the host when its name cannot be looked up.
    pub fn node(&self) -> Result<SocketAddr, String> {
        if let Some(address) = self.node_address {
            return Ok((address, self.node_port).into());
        }
        let advice = "; give the host a node_address in the inventory";
        let mut found = (self.host.as_str(), self.node_port).to_socket_addrs().map_err(|error| {
            format!("cannot look up '{}', where host {} is: {error}{advice}", self.host, self.name)
        })?;
        found
            .next()
            .ok_or_else(|| format!("'{}', where host {} is, has no address{advice}", self.host, self.name))
    }

    /// Where its node listens.
    ///
    /// # Errors
    /// As [`Host::node`].
    pub fn listen(&self) -> Result<SocketAddr, String> {
        match self.node_listen {
            Some(address) => Ok((address, self.node_port).into()),
            None => self.node(),
        }
    }
}

impl Inventory {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// One line that names file, host and key, and what would be right.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!(
                "{}: {error}; 'violet-testbed inventory import --help' makes an inventory",
                path.display()
            )
        })?;
        Ok(read::parse(path, &text)?)
    }

    /// The inventory that the flags of [`args`] name, with only the hosts that they name.
    ///
    /// # Errors
    /// As [`Inventory::read`], and a name in `--only` that is no host's.
    pub fn from_matches(matches: &clap::ArgMatches) -> Result<Self, Failure> {
        let path = matches.get_one::<PathBuf>("inventory").expect("the flag has a default");
        let mut inventory = Self::read(path)?;
        if let Some(names) = matches.get_many::<String>("only") {
            let names: Vec<&String> = names.collect();
            if let Some(name) = names.iter().find(|name| inventory.host(name).is_none()) {
                let known: Vec<&str> = inventory.hosts.iter().map(|host| host.name.as_str()).collect();
                return Err(format!("--only: there is no host '{name}'; hosts: {}", known.join(", ")).into());
            }
            inventory.hosts.retain(|host| names.iter().any(|name| **name == host.name));
        }
        Ok(inventory)
    }

    /// The host of that name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The hosts, as [`crate::remote::Fleet::on_all`] takes them.
    #[must_use]
    pub fn all(&self) -> Vec<&Host> {
        self.hosts.iter().collect()
    }

    /// The file that describes this inventory.
    #[must_use]
    pub fn to_toml(&self) -> String {
        read::write(self)
    }
}

/// The flags by which every sub-command finds its hosts: `--inventory`, `--only`, `--at-once`, `--dir`.
#[must_use]
pub fn args() -> Vec<clap::Arg> {
    use clap::{Arg, value_parser};
    vec![
        Arg::new("inventory")
            .long("inventory")
            .short('i')
            .value_name("file")
            .help("Which hosts there are.")
            .env("VIOLET_INVENTORY")
            .default_value(FILE_DEFAULT)
            .value_parser(value_parser!(PathBuf)),
        Arg::new("only")
            .long("only")
            .value_name("host,…")
            .help("Only these hosts of the inventory.")
            .value_delimiter(','),
        Arg::new("at-once")
            .long("at-once")
            .value_name("hosts")
            .help("Most hosts that are worked on at once.")
            .default_value("64")
            .value_parser(value_parser!(u16).range(1..)),
        Arg::new("dir")
            .long("dir")
            .value_name("directory")
            .help("Where keys, results and logs are kept on this machine.")
            .default_value(".violet/testbed")
            .value_parser(value_parser!(PathBuf)),
    ]
}

/// The value of `--at-once`.
#[must_use]
pub fn at_once(matches: &clap::ArgMatches) -> usize {
    usize::from(*matches.get_one::<u16>("at-once").expect("the flag has a default"))
}

/// The value of `--dir`.
#[must_use]
pub fn local_dir(matches: &clap::ArgMatches) -> PathBuf {
    matches.get_one::<PathBuf>("dir").expect("the flag has a default").clone()
}
