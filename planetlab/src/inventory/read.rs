//! Inventory files as text: checking one, and writing one.
//!
//! The file is walked key by key rather than handed to a derived reader, because a message has to name the host and
//! the key, and a misspelt key must not pass in silence.

use super::{HOSTS_MAX, Host, Inventory};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Longest name of a host, so that tables stay readable.
const NAME_BYTES_MAX: usize = 64;
/// Keys that are a host's own and cannot be a default.
const OWN_KEYS: [&str; 4] = ["name", "host", "node_address", "node_listen"];
/// Settings that are set for each node, so that the inventory must not.
const NODE_OWN_SETTINGS: [&str; 5] = ["listen", "advertise", "servers", "cluster-key-file", "gossip"];

/// Reads a file's text; the error is one line.
pub fn parse(path: &Path, text: &str) -> Result<Inventory, String> {
    let file = path.display();
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("{file}: line {line}: {}", error.message().replace('\n', " "))
    })?;
    known_keys(&format!("{file}"), &table, &["defaults", "node", "host"])?;
    let mut defaults = Host::new("", "");
    if let Some(value) = table.get("defaults") {
        let place = format!("{file}: [defaults]");
        for (key, value) in table_of(&place, value)? {
            if OWN_KEYS.contains(&key.as_str()) {
                return Err(format!("{place}: {key}: belongs into each [[host]]"));
            }
            set(&mut defaults, &place, key, value)?;
        }
    }
    let (gossip, settings) = node(&format!("{file}: [node]"), table.get("node"))?;
    let hosts = match table.get("host") {
        Some(Value::Array(hosts)) if !hosts.is_empty() => hosts,
        _ => {
            return Err(format!(
                "{file}: there is no host in it; each is a section [[host]] with name and host"
            ));
        }
    };
    if HOSTS_MAX < hosts.len() {
        return Err(format!("{file}: {} hosts; allowed: at most {HOSTS_MAX}", hosts.len()));
    }
    let hosts =
        hosts.iter().enumerate().map(|(index, value)| host(&file.to_string(), index, value, &defaults));
    let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
    check_distinct(&file.to_string(), &hosts)?;
    Ok(Inventory { path: path.into(), gossip, settings, hosts })
}

fn host(file: &str, index: usize, value: &Value, defaults: &Host) -> Result<Host, String> {
    let name = value.get("name").and_then(Value::as_str);
    let place = match name {
        Some(name) => format!("{file}: host '{name}'"),
        None => format!("{file}: host number {}", index + 1),
    };
    let table = table_of(&place, value)?;
    let mut host = defaults.clone();
    for (key, value) in table {
        set(&mut host, &place, key, value)?;
    }
    for (key, is_missing) in [("name", host.name.is_empty()), ("host", host.host.is_empty())] {
        if is_missing {
            return Err(format!("{place}: {key}: is missing; a text, such as {key} = \"fra1\""));
        }
    }
    Ok(host)
}

fn node(place: &str, value: Option<&Value>) -> Result<(Option<String>, BTreeMap<String, String>), String> {
    let (mut gossip, mut settings) = (None, BTreeMap::new());
    let Some(value) = value else { return Ok((gossip, settings)) };
    let table = table_of(place, value)?;
    known_keys(place, table, &["gossip", "settings"])?;
    if let Some(value) = table.get("gossip") {
        let preset = text(place, "gossip", value)?;
        if preset != "lan" && preset != "wan" {
            return Err(format!("{place}: gossip: '{preset}' is not allowed; allowed: lan, wan"));
        }
        gossip = Some(preset);
    }
    if let Some(value) = table.get("settings") {
        let place = format!("{place}: settings");
        for (name, value) in table_of(&place, value)? {
            if NODE_OWN_SETTINGS.contains(&name.as_str()) {
                return Err(format!(
                    "{place}: {name}: is set for each node, from the hosts and [node] gossip"
                ));
            }
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => value.to_string(),
                Value::Array(_) | Value::Table(_) | Value::Datetime(_) => {
                    return Err(format!(
                        "{place}: {name}: a text or a number, as 'violet serve --help' allows"
                    ));
                }
            };
            settings.insert(name.clone(), value);
        }
    }
    Ok((gossip, settings))
}

/// Sets one key of a host.
fn set(host: &mut Host, place: &str, key: &str, value: &Value) -> Result<(), String> {
    let wrong = |right: &str| format!("{place}: {key}: {value} is not allowed; {right}");
    let port = || {
        let port = value.as_integer().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        port.ok_or_else(|| wrong("a port, 1 to 65535"))
    };
    let ip = || {
        let address = value.as_str().and_then(|text| text.parse().ok());
        address
            .ok_or_else(|| wrong("an IP address in quotes, such as \"203.0.113.7\"; the port is node_port"))
    };
    match key {
        "name" => host.name = name(place, value)?,
        "host" => host.host = word(place, key, value)?,
        "user" => host.user = Some(word(place, key, value)?),
        "ssh_port" => host.ssh_port = Some(port()?),
        "identity" => host.identity = Some(PathBuf::from(text(place, key, value)?)),
        "ssh_options" => host.ssh_options.extend(options(place, key, value)?),
        "dir" => host.dir = directory(place, value)?,
        "node_address" => host.node_address = Some(ip()?),
        "node_listen" => host.node_listen = Some(ip()?),
        "node_port" => host.node_port = port()?,
        "site" => host.site = Some(text(place, key, value)?),
        "region" => host.region = Some(text(place, key, value)?),
        "provider" => host.provider = Some(text(place, key, value)?),
        "labels" => host.labels.extend(texts(place, key, value)?),
        "cores" => {
            let cores =
                value.as_integer().and_then(|cores| u32::try_from(cores).ok()).filter(|cores| *cores != 0);
            host.cores = Some(cores.ok_or_else(|| wrong("a number of cores, at least 1"))?);
        }
        "memory_mib" => {
            let memory = value.as_integer().and_then(|memory| u64::try_from(memory).ok());
            host.memory_mib = Some(memory.ok_or_else(|| wrong("a number of MiB, such as 2048"))?);
        }
        _ => {
            return Err(format!(
                "{place}: {key}: there is no such key; keys: name, host, user, ssh_port, identity, ssh_options, dir, \
                 node_address, node_listen, node_port, site, region, provider, labels, cores, memory_mib"
            ));
        }
    }
    Ok(())
}

fn known_keys(place: &str, table: &Table, known: &[&str]) -> Result<(), String> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{place}: {key}: there is no such key; keys: {}", known.join(", "))),
        None => Ok(()),
    }
}

fn table_of<'a>(place: &str, value: &'a Value) -> Result<&'a Table, String> {
    value
        .as_table()
        .ok_or_else(|| format!("{place}: {value} is not allowed; a section of NAME = VALUE lines"))
}

fn text(place: &str, key: &str, value: &Value) -> Result<String, String> {
    let text = value.as_str().filter(|text| !text.is_empty() && !text.contains(char::is_control));
    text.map(str::to_owned).ok_or_else(|| format!("{place}: {key}: {value} is not allowed; a text in quotes"))
}

/// A text that ssh takes as one argument and not for a flag.
fn word(place: &str, key: &str, value: &Value) -> Result<String, String> {
    let word = text(place, key, value)?;
    if word.starts_with('-') || word.contains(char::is_whitespace) {
        return Err(format!("{place}: {key}: '{word}' is not allowed; no blanks and no '-' at the start"));
    }
    Ok(word)
}

fn name(place: &str, value: &Value) -> Result<String, String> {
    let name = word(place, "name", value)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if NAME_BYTES_MAX < name.len() || !name.chars().all(is_plain) || name.starts_with('.') {
        return Err(format!(
            "{place}: name: '{name}' is not allowed; up to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', no '.' first"
        ));
    }
    Ok(name)
}

/// The directory is put between quotes of a shell and a socket address of its own, so it has to be plain.
fn directory(place: &str, value: &Value) -> Result<String, String> {
    let dir = word(place, "dir", value)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let climbs = dir.split('/').any(|part| part == "..");
    if !dir.chars().all(is_plain) || climbs || dir.chars().all(|c| matches!(c, '/' | '.')) {
        return Err(format!(
            "{place}: dir: '{dir}' is not allowed; a path of letters, digits, '.', '_', '-' and '/', relative to the home \
             directory or absolute, such as \"violet\""
        ));
    }
    Ok(dir.trim_end_matches('/').to_owned())
}

fn texts(place: &str, key: &str, value: &Value) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or_else(|| {
        format!("{place}: {key}: {value} is not allowed; a list of texts, such as [\"one\", \"two\"]")
    })?;
    list.iter().map(|value| text(place, key, value)).collect()
}

fn options(place: &str, key: &str, value: &Value) -> Result<Vec<String>, String> {
    let options = texts(place, key, value)?;
    for option in &options {
        let name = option
            .split_once('=')
            .map(|(name, _)| name)
            .filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()));
        let Some(name) = name else {
            return Err(format!(
                "{place}: {key}: '{option}' is not allowed; Name=value as in ssh_config, such as \"ProxyJump=gate\""
            ));
        };
        if ["ControlMaster", "ControlPath", "ControlPersist", "BatchMode"]
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
        {
            return Err(format!("{place}: {key}: {name}: is set by the testbed itself"));
        }
    }
    Ok(options)
}

/// Two hosts under one name, or two nodes at one address, would overwrite each other's files or refuse to start.
fn check_distinct(file: &str, hosts: &[Host]) -> Result<(), String> {
    let mut names: HashMap<&str, ()> = HashMap::new();
    let mut nodes: HashMap<_, &str> = HashMap::new();
    let mut dirs: HashMap<_, &str> = HashMap::new();
    for host in hosts {
        let name = host.name.as_str();
        if names.insert(name, ()).is_some() {
            return Err(format!(
                "{file}: host '{name}': name: is there twice; every host has a name of its own"
            ));
        }
        let address = host.node_address.map_or_else(|| host.host.clone(), |address| address.to_string());
        if let Some(other) = nodes.insert((address.clone(), host.node_port), name) {
            return Err(format!(
                "{file}: host '{name}': node_port: {address}:{} is that of host '{other}', too; give one another node_port or \
                 node_address",
                host.node_port
            ));
        }
        if let Some(other) = dirs.insert((&host.host, host.ssh_port, &host.user, &host.dir), name) {
            return Err(format!(
                "{file}: host '{name}': dir: '{}' is that of host '{other}' on the same machine; give one another dir",
                host.dir
            ));
        }
    }
    Ok(())
}

/// The text of an inventory; every key is spelt out at its host.
pub fn write(inventory: &Inventory) -> String {
    let mut out = String::new();
    let line = |out: &mut String, key: &str, value: Value| {
        writeln!(out, "{key} = {value}").expect("a string takes any text");
    };
    if inventory.gossip.is_some() || !inventory.settings.is_empty() {
        out.push_str("[node]\n");
        if let Some(gossip) = &inventory.gossip {
            line(&mut out, "gossip", gossip.as_str().into());
        }
        if !inventory.settings.is_empty() {
            let settings =
                inventory.settings.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
            line(&mut out, "settings", Value::Table(settings.collect()));
        }
        out.push('\n');
    }
    for host in &inventory.hosts {
        out.push_str("[[host]]\n");
        for (key, value) in pairs(host) {
            line(&mut out, key, value);
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// What a host says otherwise than by default.
fn pairs(host: &Host) -> Vec<(&'static str, Value)> {
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let ip = |address: Option<std::net::IpAddr>| address.map(|address| Value::from(address.to_string()));
    let list = |texts: &[String]| {
        (!texts.is_empty())
            .then(|| Value::Array(texts.iter().map(|text| Value::from(text.as_str())).collect()))
    };
    let memory = host.memory_mib.and_then(|memory| i64::try_from(memory).ok());
    let keys = [
        ("name", Some(host.name.as_str().into())),
        ("host", Some(host.host.as_str().into())),
        ("user", text(&host.user)),
        ("ssh_port", host.ssh_port.map(|port| i64::from(port).into())),
        ("identity", host.identity.as_ref().map(|path| path.display().to_string().into())),
        ("ssh_options", list(&host.ssh_options)),
        ("dir", (host.dir != super::REMOTE_DIR_DEFAULT).then(|| host.dir.as_str().into())),
        ("node_address", ip(host.node_address)),
        ("node_listen", ip(host.node_listen)),
        ("node_port", (host.node_port != super::NODE_PORT_DEFAULT).then(|| i64::from(host.node_port).into())),
        ("site", text(&host.site)),
        ("region", text(&host.region)),
        ("provider", text(&host.provider)),
        ("labels", list(&host.labels)),
        ("cores", host.cores.map(|cores| i64::from(cores).into())),
        ("memory_mib", memory.map(Value::from)),
    ];
    keys.into_iter().filter_map(|(key, value)| value.map(|value| (key, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Inventory, String> {
        parse(Path::new("i.toml"), text)
    }

    #[test]
    fn a_host_says_otherwise_than_the_defaults() {
        let inventory = check(
            "[defaults]\nuser = \"me\"\nnode_port = 5000\nssh_options = [\"ProxyJump=gate\"]\n[node]\ngossip = \"wan\"\n\
             settings = { replicas = 2, write-rule = \"quorum\" }\n[[host]]\nname = \"a\"\nhost = \"10.0.0.1\"\n\
             [[host]]\nname = \"b\"\nhost = \"10.0.0.2\"\nuser = \"you\"\nssh_port = 2222\nssh_options = [\"Compression=yes\"]\n\
             dir = \"/srv/violet/\"\nsite = \"fra\"\ncores = 4\nmemory_mib = 2048\nlabels = [\"small\"]\n",
        )
        .unwrap();
        assert_eq!(inventory.gossip.as_deref(), Some("wan"));
        let settings: Vec<_> =
            inventory.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(settings, ["replicas=2", "write-rule=quorum"]);
        let [a, b] = &inventory.hosts[..] else { panic!("two hosts") };
        assert_eq!((a.user.as_deref(), b.user.as_deref()), (Some("me"), Some("you")));
        assert_eq!((a.dir.as_str(), b.dir.as_str()), ("violet", "/srv/violet"));
        assert_eq!(b.ssh_options, ["ProxyJump=gate", "Compression=yes"]);
        assert_eq!(a.node().unwrap().to_string(), "10.0.0.1:5000");
        assert_eq!((b.cores, b.memory_mib, b.ssh_port), (Some(4), Some(2048), Some(2222)));
        // What is written reads back as the same.
        assert_eq!(check(&inventory.to_toml()).unwrap(), inventory);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_would_be_right() {
        let error = |text: &str| check(text).unwrap_err();
        let host = |line: &str| error(&format!("[[host]]\nname = \"a\"\nhost = \"h\"\n{line}\n"));
        assert_eq!(
            host("ssh_port = 70000"),
            "i.toml: host 'a': ssh_port: 70000 is not allowed; a port, 1 to 65535"
        );
        assert!(
            host("usr = \"me\"")
                .starts_with("i.toml: host 'a': usr: there is no such key; keys: name, host, user")
        );
        assert!(
            host("host = \"x\"").starts_with("i.toml: line 4: duplicate key"),
            "{}",
            host("host = \"x\"")
        );
        assert!(host("dir = \"a b\"").starts_with("i.toml: host 'a': dir: 'a b' is not allowed; no blanks"));
        assert!(
            host("dir = \"a/../b\"").starts_with("i.toml: host 'a': dir: 'a/../b' is not allowed; a path of")
        );
        assert!(host("user = \"-oProxyCommand=x\"").contains("no '-' at the start"));
        assert!(host("ssh_options = [\"-v\"]").contains("'-v' is not allowed; Name=value as in ssh_config"));
        assert!(host("ssh_options = [\"controlpath=x\"]").contains("is set by the testbed itself"));
        assert!(host("node_address = \"10.0.0.1:5\"").contains("an IP address in quotes"));
        assert!(host("cores = 0").contains("at least 1"));
        assert_eq!(
            error("[[host]]\nhost = \"h\""),
            "i.toml: host number 1: name: is missing; a text, such as name = \"fra1\""
        );
        assert!(error("").contains("there is no host in it"));
        assert!(error("[defaults]\nname = \"a\"").contains("[defaults]: name: belongs into each [[host]]"));
        assert!(error("[node]\ngossip = \"man\"").contains("'man' is not allowed; allowed: lan, wan"));
        assert!(error("[node]\nsettings = { listen = \"x\" }").contains("listen: is set for each node"));
        let twice = "[[host]]\nname = \"a\"\nhost = \"h\"\n";
        assert!(error(&twice.repeat(2)).contains("host 'a': name: is there twice"));
        let other = twice.replace("\"a\"", "\"b\"");
        assert!(
            error(&format!("{twice}{other}"))
                .contains("host 'b': node_port: h:4410 is that of host 'a', too")
        );
        assert!(
            error(&format!("{twice}{other}node_port = 1\n")).contains("dir: 'violet' is that of host 'a'")
        );
    }
}
