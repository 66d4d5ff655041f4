//! What a process must know before it can serve: the cluster's key, the first member list, a seed.
//!
//! Every error here is one clear line that names the file or address and what is allowed.

use crate::config::{Config, ConfigError};
use crate::ids::Site;
use crate::node::Birth;
use crate::time::Instant;
use rand::TryRng;
use rand::rngs::SysRng;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use violet_client::servers;

/// How long a key file may be: shorter ones can be guessed, longer ones are the wrong file.
const KEY_FILE_BYTES: RangeInclusive<usize> = 16..=4_096;
/// Separates this use of a key file from all others.
const KEY_CONTEXT: &str = "violet cluster key, version 1";
/// The key of clusters on loopback that were given none. It is no secret.
const DEVELOPMENT_KEY: &[u8] = b"development only, loopback only";
/// Most members of a list.
const MEMBERS_MAX: usize = 4_096;

/// Gathers what a process is born with.
///
/// # Errors
/// [`ConfigError`] when a file cannot be used, or the settings do not fit together.
pub fn birth(config: &Config, now: Instant) -> Result<Birth, ConfigError> {
    check_addresses(config)?;
    let cluster_key = cluster_key(config)?;
    let list = members(config)?;
    let members: Vec<SocketAddr> = list.iter().map(|(address, _)| *address).collect();
    let sites = list.into_iter().filter(|(_, site)| !site.is_none()).collect();
    check_port(config, &members)?;
    let (pid, seed) = (std::process::id(), random_seed()?);
    Ok(Birth { now, pid, seed, cluster_key, members, sites, large_pages: true })
}

/// What to tell the user when the first list does not name this node. That is allowed: it joins.
#[must_use]
pub fn unlisted(config: &Config, members: &[SocketAddr]) -> Option<String> {
    let own = config.address();
    let list = config.servers.as_ref().filter(|_| !members.contains(&own))?;
    let (count, plural) = (members.len(), if members.len() == 1 { "" } else { "s" });
    Some(format!("{own} is not in {}; it joins the {count} member{plural} listed there", list.display()))
}

/// Whether the cluster runs on the development key.
#[must_use]
pub fn has_development_key(config: &Config) -> bool {
    config.cluster_key_file.is_none()
}

fn random_seed() -> Result<u64, ConfigError> {
    SysRng.try_next_u64().map_err(|error| ConfigError(format!("no randomness from the system: {error}")))
}

fn check_addresses(config: &Config) -> Result<(), ConfigError> {
    let fail = |text: String| Err(ConfigError(text));
    let address = config.address();
    if address.ip().is_unspecified() {
        return fail(format!("listen: {address} is no address that others can reach; set advertise, too"));
    }
    if address.is_ipv4() != config.listen.is_ipv4() {
        return fail(format!("advertise: {address} is not of the same family as listen {}", config.listen));
    }
    let is_open = [config.listen, address].iter().any(|address| !address.ip().is_loopback());
    if is_open && config.cluster_key_file.is_none() {
        return fail(format!("listen: {} is not loopback, so cluster-key-file is needed", config.listen));
    }
    Ok(())
}

/// A member is named after its address, which the others must know before it is there.
fn check_port(config: &Config, members: &[SocketAddr]) -> Result<(), ConfigError> {
    let own = config.address();
    let unset = [("listen", config.listen), ("advertise", own)].into_iter().find(|(_, it)| it.port() == 0);
    let has_others = members.iter().any(|member| *member != own);
    let Some((name, unset)) = unset.filter(|_| has_others) else { return Ok(()) };
    Err(ConfigError(format!(
        "{name}: {unset} leaves the port to the system; only a node without other members can do that"
    )))
}

fn cluster_key(config: &Config) -> Result<[u8; 32], ConfigError> {
    let Some(path) = &config.cluster_key_file else {
        return Ok(blake3::derive_key(KEY_CONTEXT, DEVELOPMENT_KEY));
    };
    let bytes = std::fs::read(path)
        .map_err(|error| ConfigError(format!("cluster-key-file: {}: {error}", path.display())))?;
    if KEY_FILE_BYTES.contains(&bytes.len()) {
        return Ok(blake3::derive_key(KEY_CONTEXT, &bytes));
    }
    let (min, max) = (KEY_FILE_BYTES.start(), KEY_FILE_BYTES.end());
    Err(ConfigError(format!(
        "cluster-key-file: {} has {} bytes; allowed: {min} to {max}",
        path.display(),
        bytes.len()
    )))
}

/// The first member list; this node alone when there is no list.
fn members(config: &Config) -> Result<Vec<(SocketAddr, Site)>, ConfigError> {
    let Some(path) = &config.servers else { return Ok(vec![(config.address(), Site::default())]) };
    let bytes =
        std::fs::read(path).map_err(|error| ConfigError(format!("servers: {}: {error}", path.display())))?;
    parse_members(path, &String::from_utf8_lossy(&bytes), config.listen.is_ipv4())
}

/// Reads a list of members: no member twice, and all within reach of one socket.
fn parse_members(path: &Path, text: &str, is_ipv4: bool) -> Result<Vec<(SocketAddr, Site)>, ConfigError> {
    let fail = |why: String| ConfigError(format!("servers: {why}"));
    let path = path.display().to_string();
    let servers = servers::parse_file(&path, text).map_err(|error| fail(error.to_string()))?;
    let mut members: Vec<(SocketAddr, Site)> = Vec::with_capacity(servers.len());
    for server in &servers {
        if server.address.is_ipv4() != is_ipv4 {
            return Err(fail(format!("{path}: \"{server}\" is not of the same address family as listen")));
        }
        if members.iter().any(|(address, _)| *address == server.address) {
            return Err(fail(format!("{path}: \"{server}\" is listed twice")));
        }
        let site = server.site.as_deref().map_or(Some(Site::default()), Site::parse);
        let site =
            site.ok_or_else(|| fail(format!("{path}: site of \"{server}\": allowed: up to 32 bytes")))?;
        members.push((server.address, site));
    }
    if MEMBERS_MAX < members.len() {
        return Err(fail(format!("{path} lists {} members; allowed: 1 to {MEMBERS_MAX}", members.len())));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn check(text: &str) -> Result<String, String> {
        let members = parse_members(Path::new("s.txt"), text, true).map_err(|error| error.0)?;
        let text = |(address, site): &(SocketAddr, Site)| match site.is_none() {
            true => address.to_string(),
            false => format!("{address}={site}"),
        };
        Ok(members.iter().map(text).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_member_list_is_read_or_what_is_wrong_is_named() {
        assert_eq!(
            check("127.0.0.1:1\n\n# x\n 127.0.0.2:2 # y\r\n").as_deref(),
            Ok("127.0.0.1:1 127.0.0.2:2")
        );
        let error = |text| check(text).expect_err("not a list");
        assert_eq!(
            check("127.0.0.1:1 eu\n127.0.0.1:2\t us # far\n127.0.0.1:3").expect("a list"),
            "127.0.0.1:1=eu 127.0.0.1:2=us 127.0.0.1:3"
        );
        let long = "x".repeat(33);
        let too_long = format!("127.0.0.1:1 {long}");
        assert!(check(&too_long).unwrap_err().ends_with("site of \"127.0.0.1:1\": allowed: up to 32 bytes"));
        assert!(error("127.0.0.1:1\n127.0.0.1\n").starts_with("servers: s.txt line 2: "));
        assert!(error("# none\n").starts_with("servers: server list s.txt has no"));
        assert_eq!(error("127.0.0.1:1\n127.0.0.1:1"), "servers: s.txt: \"127.0.0.1:1\" is listed twice");
        assert_eq!(
            error("[::1]:1"),
            "servers: s.txt: \"[::1]:1\" is not of the same address family as listen"
        );
    }

    #[test]
    fn open_addresses_need_a_key_and_a_name() {
        let check = |listen: &str, advertise: Option<&str>| {
            let parse = |text: &str| text.parse().expect("an address");
            let config =
                Config { listen: parse(listen), advertise: advertise.map(parse), ..Config::default() };
            birth(&config, Instant::ZERO).map(|birth| birth.members).map_err(|error| error.0)
        };
        assert_eq!(check("127.0.0.1:9", None), Ok(vec!["127.0.0.1:9".parse().expect("an address")]));
        assert!(check("[::1]:9", None).is_ok());
        let error = |listen, advertise| check(listen, advertise).expect_err("not safe");
        assert!(error("10.0.0.1:9", None).ends_with("is not loopback, so cluster-key-file is needed"));
        assert!(error("127.0.0.1:9", Some("10.0.0.1:9")).contains("cluster-key-file is needed"));
        assert!(error("0.0.0.0:9", None).ends_with("set advertise, too"));
        assert!(error("127.0.0.1:9", Some("[::1]:9")).contains("same family"));
    }

    #[test]
    fn only_a_node_alone_may_leave_its_port_to_the_system() {
        let directory = tempfile::tempdir().expect("a directory");
        let list = directory.path().join("servers.txt");
        std::fs::write(&list, "127.0.0.1:8\n").expect("a file");
        let check = |listen: &str, advertise: Option<&str>, servers: Option<&PathBuf>| {
            let parse = |text: &str| text.parse().expect("an address");
            let (listen, advertise, servers) = (parse(listen), advertise.map(parse), servers.cloned());
            let config = Config { listen, advertise, servers, ..Config::default() };
            birth(&config, Instant::ZERO).map(|_| ()).map_err(|error| error.0)
        };
        assert_eq!(check("127.0.0.1:0", None, None), Ok(()));
        assert_eq!(check("127.0.0.1:9", None, Some(&list)), Ok(()));
        assert_eq!(check("127.0.0.1:0", Some("127.0.0.1:8"), Some(&list)), Ok(()));
        let error = |listen, advertise| check(listen, advertise, Some(&list)).expect_err("nobody finds it");
        assert!(error("127.0.0.1:0", None).starts_with("listen: 127.0.0.1:0 leaves the port to the system"));
        assert!(error("127.0.0.1:0", Some("127.0.0.1:9")).starts_with("listen: 127.0.0.1:0 leaves"));
        assert!(error("127.0.0.1:9", Some("127.0.0.1:0")).starts_with("advertise: 127.0.0.1:0 leaves"));
    }

    #[test]
    fn key_files_have_bounds_and_different_bytes_make_different_keys() {
        let directory = tempfile::tempdir().expect("a directory");
        let with_key = |bytes: usize| {
            let path = directory.path().join("key");
            std::fs::write(&path, vec![7; bytes]).expect("a file");
            cluster_key(&Config { cluster_key_file: Some(path), ..Config::default() })
                .map_err(|error| error.0)
        };
        assert!(with_key(15).expect_err("short").ends_with("key has 15 bytes; allowed: 16 to 4096"));
        assert!(with_key(4_097).is_err());
        assert_ne!(with_key(16), with_key(17));
        assert_ne!(with_key(16), cluster_key(&Config::default()).map_err(|error| error.0));
        let missing = Config { cluster_key_file: Some(PathBuf::from("/no/such/key")), ..Config::default() };
        assert!(
            cluster_key(&missing).expect_err("missing").0.starts_with("cluster-key-file: /no/such/key: ")
        );
    }
}
