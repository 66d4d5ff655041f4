//! Importers: what other tools know about hosts, as hosts of an inventory.
//!
//! Each takes the text that its tool prints and keeps what an inventory has a place for. They are lenient about what
//! else is in there, because the tools change, and strict about finding hosts at all: a file without any is an error
//! that says what was looked for.

use super::{Host, NODE_PORT_DEFAULT};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What can be imported.
pub const KINDS: [&str; 6] = ["csv", "terraform", "cloudlab", "kubectl", "fablib", "emulator"];
/// The same, for `--help`.
pub const HELP: &str = "csv: a header with the inventory's keys, at least name and host; terraform: 'terraform show -json'; \
     cloudlab: the manifest (XML); kubectl: 'kubectl get nodes -o json'; fablib: list_nodes(output=\"json\"); \
     emulator: emulator.json of 'violet-testbed emulate'.";

/// Reads hosts from the text of one of the [`KINDS`].
///
/// # Errors
/// One line without the file's name: what was looked for and is not there, or a wrong value and its place.
pub fn import(kind: &str, text: &str) -> Result<Vec<Host>, String> {
    let hosts = match kind {
        "csv" => csv(text)?,
        "cloudlab" => cloudlab(text)?,
        _ => {
            let value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
            match kind {
                "terraform" => terraform(&value),
                "kubectl" => kubectl(&value),
                "fablib" => fablib(&value),
                "emulator" => emulator(&value),
                _ => unreachable!("clap allows the kinds above only"),
            }
        }
    };
    if hosts.is_empty() {
        let wanted = match kind {
            "csv" => "no line below the header",
            "cloudlab" => "no <node> with a <login>, as in the manifest of an experiment that is ready",
            "terraform" => {
                "no resource with a public_ip, ipv4_address or the like, as 'terraform show -json' prints"
            }
            "kubectl" => "no item of kind Node with an address, as 'kubectl get nodes -o json' prints",
            "fablib" => "no node with a 'Management IP', as list_nodes(output=\"json\") prints",
            _ => "no node with name and address, as 'violet-testbed emulate' writes",
        };
        return Err(format!("no hosts found: {wanted}"));
    }
    Ok(hosts)
}

/// Characters that a name may not have become '-'.
fn name_of(text: &str) -> String {
    let name: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .collect();
    name.trim_matches(|c| matches!(c, '.' | '-')).to_owned()
}

fn csv(text: &str) -> Result<Vec<Host>, String> {
    let mut rows = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let rows = &mut rows.by_ref().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let Some((_, header)) = rows.next() else { return Ok(Vec::new()) };
    let keys: Vec<String> = cells(header).into_iter().map(|key| key.trim().to_ascii_lowercase()).collect();
    for needed in ["name", "host"] {
        if !keys.iter().any(|key| key == needed) {
            return Err(format!(
                "line 1: there is no column '{needed}'; a header such as name,host,user,site,region"
            ));
        }
    }
    rows.map(|(number, line)| {
        let cells = cells(line);
        if cells.len() != keys.len() {
            return Err(format!("line {number}: {} cells; the header has {}", cells.len(), keys.len()));
        }
        let pairs = keys.iter().map(String::as_str).zip(cells.iter().map(|cell| cell.trim()));
        csv_host(pairs.filter(|(_, cell)| !cell.is_empty()), number)
    })
    .collect()
}

fn csv_host<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>, number: usize) -> Result<Host, String> {
    let mut host = Host::new("", "");
    for (key, cell) in pairs {
        let wrong = |right: &str| format!("line {number}: {key}: '{cell}' is not allowed; {right}");
        let whole = || cell.parse::<u64>().map_err(|_| wrong("a whole number"));
        let port = || cell.parse::<u16>().map_err(|_| wrong("a port, 1 to 65535"));
        let address = || cell.parse::<IpAddr>().map_err(|_| wrong("an IP address"));
        let owned = || Some(cell.to_owned());
        let list = || cell.split(';').map(|word| word.trim().to_owned()).collect::<Vec<_>>();
        match key {
            "name" => host.name = name_of(cell),
            "host" => cell.clone_into(&mut host.host),
            "user" => host.user = owned(),
            "ssh_port" => host.ssh_port = Some(port()?),
            "identity" => host.identity = Some(cell.into()),
            "ssh_options" => host.ssh_options = list(),
            "dir" => cell.clone_into(&mut host.dir),
            "node_address" => host.node_address = Some(address()?),
            "node_listen" => host.node_listen = Some(address()?),
            "node_port" => host.node_port = port()?,
            "site" => host.site = owned(),
            "region" => host.region = owned(),
            "provider" => host.provider = owned(),
            "labels" => host.labels = list(),
            "cores" => host.cores = Some(u32::try_from(whole()?).map_err(|_| wrong("a number of cores"))?),
            "memory_mib" => host.memory_mib = Some(whole()?),
            _ => {
                return Err(format!(
                    "line 1: '{key}' is no key of an inventory; see 'violet-testbed inventory show'"
                ));
            }
        }
    }
    Ok(host)
}

/// Cells of a line; quotes hold commas together, two quotes within are one.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let cell = cells.last_mut().expect("it begins with one and only grows");
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                cell.push('"');
                chars.next();
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            c => cell.push(c),
        }
    }
    cells
}

fn text_at<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| value.pointer(key).and_then(Value::as_str)).filter(|text| !text.is_empty())
}

/// Attributes under which providers keep a machine's public address.
const TERRAFORM_ADDRESSES: [&str; 7] = [
    "/public_ip",
    "/public_ip_address",
    "/ipv4_address",
    "/network_interface/0/access_config/0/nat_ip",
    "/access_ip_v4",
    "/main_ip",
    "/ip_address",
];
/// Attributes under which providers keep a machine's own address.
const TERRAFORM_OWN_ADDRESSES: [&str; 3] =
    ["/private_ip", "/private_ip_address", "/network_interface/0/network_ip"];

/// Both `terraform show -json` (values.root_module) and a state file (resources[].instances[]) are trees in which a
/// resource has a type and attributes; so the whole tree is walked.
fn terraform(value: &Value) -> Vec<Host> {
    let mut hosts = Vec::new();
    walk_terraform(value, &mut hosts);
    // `count` gives all machines of a resource the same name.
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for host in &mut hosts {
        let before = seen.entry(host.name.clone()).or_default();
        *before += 1;
        if 1 < *before {
            host.name = format!("{}-{before}", host.name);
        }
    }
    hosts
}

fn walk_terraform(value: &Value, hosts: &mut Vec<Host>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| walk_terraform(value, hosts)),
        Value::Object(object) => {
            if let (Some(kind), Some(attributes)) = (text_at(value, &["/type"]), object.get("values")) {
                hosts.extend(terraform_host(kind, value, attributes));
            } else if let (Some(kind), Some(Value::Array(instances))) =
                (text_at(value, &["/type"]), object.get("instances"))
            {
                let attributes = instances.iter().filter_map(|instance| instance.get("attributes"));
                hosts.extend(attributes.filter_map(|attributes| terraform_host(kind, value, attributes)));
            } else {
                object.values().for_each(|value| walk_terraform(value, hosts));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn terraform_host(kind: &str, resource: &Value, attributes: &Value) -> Option<Host> {
    // Machines only: an elastic address or a gateway has an address, too.
    if !["instance", "server", "droplet", "machine", "linode"].iter().any(|word| kind.contains(word)) {
        return None;
    }
    let address = text_at(attributes, &TERRAFORM_ADDRESSES)?;
    let index = match resource.get("index") {
        Some(Value::String(text)) => format!("-{text}"),
        Some(Value::Number(number)) => format!("-{number}"),
        _ => String::new(),
    };
    let own_name = text_at(attributes, &["/tags/Name", "/hostname", "/name", "/label"]);
    let name = own_name
        .map(str::to_owned)
        .or_else(|| text_at(resource, &["/name"]).map(|name| format!("{name}{index}")))?;
    let mut host = Host::new(&name_of(&name), address);
    host.node_address = address.parse().ok();
    host.node_listen = text_at(attributes, &TERRAFORM_OWN_ADDRESSES).and_then(|text| text.parse().ok());
    let zone = text_at(attributes, &["/availability_zone", "/zone", "/region", "/location", "/datacenter"]);
    host.site = zone.map(str::to_owned);
    host.region = text_at(attributes, &["/region", "/location"])
        .map(str::to_owned)
        .or_else(|| zone.map(region_of_zone));
    host.provider = kind.split('_').next().map(str::to_owned);
    host.cores = attributes
        .get("vcpus")
        .or_else(|| attributes.get("cpu_core_count"))
        .and_then(Value::as_u64)
        .and_then(|n| u32::try_from(n).ok());
    Some(host)
}

/// `eu-central-1a` lies in `eu-central-1`, `europe-west3-c` in `europe-west3`.
fn region_of_zone(zone: &str) -> String {
    let letterless = zone.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let is_zone = letterless.len() + 1 == zone.len();
    if is_zone { letterless.trim_end_matches('-').to_owned() } else { zone.to_owned() }
}

fn kubectl(value: &Value) -> Vec<Host> {
    let single = std::slice::from_ref(value);
    let items = value.get("items").and_then(Value::as_array).map_or(single, Vec::as_slice);
    items.iter().filter_map(kubectl_host).collect()
}

fn kubectl_host(item: &Value) -> Option<Host> {
    let addresses = item.pointer("/status/addresses")?.as_array()?;
    let address = |kind: &str| {
        let entry = addresses.iter().find(|entry| text_at(entry, &["/type"]) == Some(kind))?;
        text_at(entry, &["/address"])
    };
    let (outside, inside) = (address("ExternalIP"), address("InternalIP"));
    let reached = outside.or(inside).or_else(|| address("Hostname"))?;
    let mut host = Host::new(&name_of(text_at(item, &["/metadata/name"])?), reached);
    host.node_address = reached.parse().ok();
    host.node_listen = outside.and(inside).and_then(|text| text.parse().ok());
    let label = |name: &str| item.pointer("/metadata/labels")?.get(name)?.as_str().map(str::to_owned);
    host.region = label("topology.kubernetes.io/region");
    host.site = label("topology.kubernetes.io/zone");
    host.provider =
        text_at(item, &["/spec/providerID"]).and_then(|id| id.split(':').next()).map(str::to_owned);
    host.cores = text_at(item, &["/status/capacity/cpu"]).and_then(|text| text.parse().ok());
    host.memory_mib = text_at(item, &["/status/capacity/memory"]).and_then(mib_of_quantity);
    Some(host)
}

/// Kubernetes' quantities of memory: `16384Ki`, `16Gi`, or bytes.
fn mib_of_quantity(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "" => Some(number >> 20),
        "Ki" => Some(number >> 10),
        "Mi" => Some(number),
        "Gi" => Some(number << 10),
        _ => None,
    }
}

/// FABRIC: a list of objects whose keys are the columns of its table; people log in through a bastion.
fn fablib(value: &Value) -> Vec<Host> {
    let nodes = value.as_array().cloned().unwrap_or_default();
    let host = |node: &Value| {
        let text = |keys: &[&str]| text_at(node, keys).map(str::to_owned);
        let address = text(&["/Management IP", "/management_ip"])?;
        let mut host = Host::new(&name_of(&text(&["/Name", "/name"])?), &address);
        host.node_address = address.parse().ok();
        host.user = text(&["/Username", "/username"]);
        host.site = text(&["/Site", "/site"]);
        host.provider = Some("fabric".into());
        let number = |keys: &[&str]| keys.iter().find_map(|key| node.pointer(key)).and_then(number_of);
        host.cores = number(&["/Cores", "/cores"]).and_then(|cores| u32::try_from(cores).ok());
        host.memory_mib = number(&["/RAM", "/ram"]).map(|gib| gib << 10);
        Some(host)
    };
    nodes.iter().filter_map(host).collect()
}

fn number_of(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// The emulator's own record: its nodes have addresses and sites; an sshd in each namespace listens on port 22.
fn emulator(value: &Value) -> Vec<Host> {
    let nodes = value.get("nodes").and_then(Value::as_array).cloned().unwrap_or_default();
    let host = |node: &Value| {
        let address = text_at(node, &["/address", "/ip"])?;
        let mut host = Host::new(&name_of(text_at(node, &["/name"])?), address);
        host.node_address = address.parse().ok();
        host.node_port = NODE_PORT_DEFAULT;
        host.site = text_at(node, &["/site"]).map(str::to_owned);
        host.region = text_at(node, &["/area"]).map(str::to_owned);
        host.provider = Some("emulator".into());
        // All nodes share one file system.
        host.dir = format!("violet/{}", host.name);
        Some(host)
    };
    nodes.iter().filter_map(host).collect()
}

/// CloudLab's manifest (RSpec): `<node client_id="n1" component_manager_id="urn:publicid:IDN+utah.cloudlab.us+…">` with
/// `<login hostname="…" port="22" username="…"/>` in it. Attributes are all that is needed, so no XML library is.
fn cloudlab(text: &str) -> Result<Vec<Host>, String> {
    if !text.contains("<rspec") {
        return Err("no manifest: there is no <rspec> in it".into());
    }
    let mut hosts: Vec<Host> = Vec::new();
    let mut node: Option<BTreeMap<String, String>> = None;
    for tag in text.split('<').skip(1) {
        let tag = tag.split_once('>').map_or(tag, |(tag, _)| tag);
        let (element, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        match element.rsplit(':').next().unwrap_or(element).trim_end_matches('/') {
            "node" => node = Some(attributes_of(attributes)),
            "login" => {
                let login = attributes_of(attributes);
                if let Some(node) = &node {
                    cloudlab_login(&mut hosts, node, &login);
                }
            }
            _ => {}
        }
    }
    Ok(hosts)
}

/// A node has a login for each user of the project; the first is taken.
fn cloudlab_login(hosts: &mut Vec<Host>, node: &BTreeMap<String, String>, login: &BTreeMap<String, String>) {
    let (Some(name), Some(address)) = (node.get("client_id"), login.get("hostname")) else { return };
    let name = name_of(name);
    if hosts.last().is_some_and(|last| last.name == name) {
        return;
    }
    let mut host = Host::new(&name, address);
    host.user = login.get("username").cloned();
    host.ssh_port = login.get("port").and_then(|port| port.parse().ok()).filter(|port| *port != 22);
    let site = node.get("component_manager_id").and_then(|urn| urn.split('+').nth(1));
    host.site = site.map(str::to_owned);
    host.provider = Some("cloudlab".into());
    hosts.push(host);
}

/// `name="value"` pairs, with either quote.
fn attributes_of(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let Some(quote) = after.chars().next().filter(|c| matches!(c, '"' | '\'')) else { break };
        let Some((value, next)) = after[1..].split_once(quote) else { break };
        found.insert(name.trim().to_owned(), value.replace("&amp;", "&"));
        rest = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One host a line: name, ssh, node address, listen address, site, region, provider, cores, MiB.
    fn check(kind: &str, text: &str) -> Result<String, String> {
        let line = |host: &Host| {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
            let ip = |ip: Option<IpAddr>| ip.map_or("-".into(), |ip| ip.to_string());
            let user = text(&host.user);
            let (cores, memory) = (host.cores.unwrap_or(0), host.memory_mib.unwrap_or(0));
            let (address, listen) = (ip(host.node_address), ip(host.node_listen));
            let (site, region, provider) = (text(&host.site), text(&host.region), text(&host.provider));
            format!(
                "{} {user}@{} {address} {listen} {site} {region} {provider} {cores} {memory}",
                host.name, host.host
            )
        };
        import(kind, text).map(|hosts| hosts.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn csv_columns_are_the_keys() {
        let text =
            "name,host,user,site,cores,labels\n# mine\na b,h1,me,\"Frankfurt, Main\",4,x;y\nc,h2,,,,\n";
        assert_eq!(
            check("csv", text).unwrap(),
            "a-b me@h1 - - Frankfurt, Main - - 4 0\nc -@h2 - - - - - 0 0"
        );
        assert_eq!(
            check("csv", "name\na").unwrap_err(),
            "line 1: there is no column 'host'; a header such as name,host,user,site,region"
        );
        assert_eq!(check("csv", "name,host\na").unwrap_err(), "line 2: 1 cells; the header has 2");
        assert_eq!(
            check("csv", "name,host,cores\na,b,x").unwrap_err(),
            "line 2: cores: 'x' is not allowed; a whole number"
        );
        assert_eq!(check("csv", "name,host").unwrap_err(), "no hosts found: no line below the header");
    }

    #[test]
    fn terraform_in_both_of_its_forms() {
        let shown = r#"{"values":{"root_module":{"resources":[{"type":"aws_eip","name":"e","values":{"public_ip":"9.9.9.9"}},
            {"type":"aws_instance","name":"node","index":0,"values":{"public_ip":"1.2.3.4","private_ip":"10.0.0.4",
            "availability_zone":"eu-central-1a","tags":null}}],"child_modules":[{"resources":[{"type":"google_compute_instance",
            "name":"g","values":{"name":"g1","zone":"europe-west3-c","network_interface":[{"network_ip":"10.0.0.5",
            "access_config":[{"nat_ip":"1.2.3.5"}]}]}}]}]}}}"#;
        assert_eq!(
            check("terraform", shown).unwrap(),
            "g1 -@1.2.3.5 1.2.3.5 10.0.0.5 europe-west3-c europe-west3 google 0 0\n\
             node-0 -@1.2.3.4 1.2.3.4 10.0.0.4 eu-central-1a eu-central-1 aws 0 0"
        );
        let state = r#"{"version":4,"resources":[{"type":"digitalocean_droplet","name":"d","instances":[
            {"attributes":{"ipv4_address":"5.5.5.5","name":"d","region":"fra1","vcpus":2}},
            {"attributes":{"ipv4_address":"5.5.5.6","name":"d","region":"fra1","vcpus":2}}]}]}"#;
        assert_eq!(
            check("terraform", state).unwrap(),
            "d -@5.5.5.5 5.5.5.5 - fra1 fra1 digitalocean 2 0\nd-2 -@5.5.5.6 5.5.5.6 - fra1 fra1 digitalocean 2 0"
        );
        assert!(
            check("terraform", "{}").unwrap_err().starts_with("no hosts found: no resource with a public_ip")
        );
        assert!(check("terraform", "{").unwrap_err().starts_with("no JSON: "));
    }

    #[test]
    fn kubectl_cloudlab_fablib_and_the_emulator() {
        let nodes = r#"{"items":[{"kind":"Node","metadata":{"name":"k1","labels":{"topology.kubernetes.io/zone":"z1"}},
            "spec":{"providerID":"gce://x"},"status":{"capacity":{"cpu":"4","memory":"16384Ki"},"addresses":[
            {"type":"InternalIP","address":"10.0.0.1"},{"type":"ExternalIP","address":"7.7.7.7"}]}}]}"#;
        assert_eq!(check("kubectl", nodes).unwrap(), "k1 -@7.7.7.7 7.7.7.7 10.0.0.1 z1 - gce 4 16");
        let manifest = r#"<rspec type="manifest"><node client_id="n1" component_manager_id="urn:publicid:IDN+utah.cloudlab.us+authority+cm">
            <services><login authentication="ssh-keys" hostname='h1.utah' port="22" username="me"/>
            <login hostname="h1.utah" port="22" username="you"/></services></node><node client_id="n2"/></rspec>"#;
        assert_eq!(check("cloudlab", manifest).unwrap(), "n1 me@h1.utah - - utah.cloudlab.us - cloudlab 0 0");
        let fabric = r#"[{"Name":"f1","Site":"STAR","Username":"ubuntu","Management IP":"2001:db8::1","Cores":2,"RAM":8}]"#;
        assert_eq!(
            check("fablib", fabric).unwrap(),
            "f1 ubuntu@2001:db8::1 2001:db8::1 - STAR - fabric 2 8192"
        );
        let made = r#"{"nodes":[{"name":"n1","address":"198.18.0.1","site":"fra","area":"eu"}]}"#;
        assert_eq!(check("emulator", made).unwrap(), "n1 -@198.18.0.1 198.18.0.1 - fra eu emulator 0 0");
    }
}
