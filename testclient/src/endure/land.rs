//! Two halves of a network on one machine: a namespace for every node, a bridge for each half, and one
//! link between the bridges that can be cut.
//!
//! All of it lives in a network namespace of this program's own (`unshare`, see [`enter_command`]), with a
//! private directory of namespace names, so everything is gone when the program ends, however it ends,
//! and no packet can leave. The program has an address on each bridge and so reaches both halves also
//! while they are cut from each other. Needs root and `ip`.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// The program's addresses on the two bridges; from the range that is set aside for benchmarks.
const BRIDGES: [(&str, &str, &str); 2] =
    [("left", "198.18.0.1", "198.18.1.0/24"), ("right", "198.18.0.2", "198.18.2.0/24")];
/// The ends of the link between the bridges.
const LINK: [&str; 2] = ["joint0", "joint1"];
/// Most nodes in one half: the last byte of an address.
const HALF_MAX: usize = 250;
/// Prepares a private place for the names of namespaces, then becomes the program.
const ENTER: &str = r#"mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec "$0" "$@""#;

/// Why there can be no such network here; `None` if there can.
pub fn obstacle() -> Option<String> {
    let try_out = |program: &str, arguments: &[&str]| {
        let status =
            Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !try_out("ip", &["-V"]) {
        return Some("needs the `ip` command".to_owned());
    }
    if !try_out("unshare", &["--net", "--mount", "true"]) {
        return Some("needs root (network namespaces)".to_owned());
    }
    None
}

/// The command that starts this program again inside a network namespace of its own.
///
/// # Errors
/// A sentence, when the program's own path is unknown.
pub fn enter_command() -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", ENTER]).arg(this);
    Ok(command)
}

/// Where the nodes are, the first half in the left one.
pub fn addresses(port: u16, count: usize) -> Result<Vec<SocketAddr>, String> {
    let left = count / 2;
    if HALF_MAX < count - left {
        return Err(format!("--nodes: {count} is not allowed; allowed: 2 to {}", 2 * HALF_MAX));
    }
    let of_node = |node: usize| {
        let (half, host) = if node < left { (1, node) } else { (2, node - left) };
        SocketAddr::from(([198, 18, half, host as u8 + 1], port))
    };
    Ok((0..count).map(of_node).collect())
}

/// The namespace of a node.
pub fn namespace(node: usize) -> String {
    format!("node{node}")
}

/// Builds the whole network, joined.
///
/// # Errors
/// A sentence that names the command that failed.
pub fn build(addresses: &[SocketAddr]) -> Result<(), String> {
    // Both bridges hear every question for an address; only the one that has it may answer. And answers of
    // nodes may come by either bridge.
    for (setting, value) in [("arp_ignore", "1"), ("rp_filter", "0")] {
        for scope in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv4/conf/{scope}/{setting}");
            fs::write(&path, value).map_err(|error| format!("{path}: {error}"))?;
        }
    }
    ip("link set lo up")?;
    ip(&format!("link add {} type veth peer name {}", LINK[0], LINK[1]))?;
    for ((bridge, address, net), joint) in BRIDGES.iter().zip(LINK) {
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add {address}/32 dev {bridge}"))?;
        ip(&format!("link set {joint} master {bridge}"))?;
        ip(&format!("link set {joint} up"))?;
        ip(&format!("link set {bridge} up"))?;
        ip(&format!("route add {net} dev {bridge} src {address}"))?;
    }
    for (node, address) in addresses.iter().enumerate() {
        let (name, bridge) = (namespace(node), if node < addresses.len() / 2 { "left" } else { "right" });
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add port{node} type veth peer name eth0 netns {name}"))?;
        ip(&format!("link set port{node} master {bridge}"))?;
        ip(&format!("link set port{node} up"))?;
        ip(&format!("-n {name} addr add {}/16 dev eth0", address.ip()))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
    }
    Ok(())
}

/// Cuts the halves from each other: what is on its way is lost in silence.
///
/// # Errors
/// A sentence, when the command fails.
pub fn cut() -> Result<(), String> {
    ip(&format!("link set {} down", LINK[0]))
}

/// Joins the halves again.
///
/// # Errors
/// A sentence, when the command fails.
pub fn join() -> Result<(), String> {
    ip(&format!("link set {} up", LINK[0]))
}

/// Runs the `ip` command; a sentence when it fails.
pub fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip {arguments}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_have_nets_of_their_own() {
        let texts: Vec<String> = addresses(9, 5).unwrap().iter().map(SocketAddr::to_string).collect();
        let expected = ["198.18.1.1:9", "198.18.1.2:9", "198.18.2.1:9", "198.18.2.2:9", "198.18.2.3:9"];
        assert_eq!(texts, expected);
        assert!(addresses(9, 600).is_err());
    }
}
