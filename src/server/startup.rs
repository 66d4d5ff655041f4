//! What a process must know before it can serve: the cluster's key, the first member list, a seed.
//!
//! Every error here is one clear line that names the file or address and what is allowed.

use crate::config::{Config, ConfigError};
use crate::node::Birth;
use crate::time::Instant;
use rand::TryRng;
use rand::rngs::SysRng;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::Path;

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
    Ok(Birth {
        now,
        pid: std::process::id(),
        seed: random_u64()?,
        cluster_key: cluster_key(config)?,
        members: members(config)?,
    })
}

/// Whether the cluster runs on the development key.
#[must_use]
pub fn has_development_key(config: &Config) -> bool {
    config.cluster_key_file.is_none()
}

/// Fills a buffer from the operating system's source of randomness.
///
/// # Errors
/// When the system has none.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), ConfigError> {
    SysRng
        .try_fill_bytes(bytes)
        .map_err(|error| ConfigError(format!("no randomness from the system: {error}")))
}

fn random_u64() -> Result<u64, ConfigError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
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
fn members(config: &Config) -> Result<Vec<SocketAddr>, ConfigError> {
    let Some(path) = &config.servers else { return Ok(vec![config.address()]) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(format!("servers: {}: {error}", path.display())))?;
    parse_members(path, &text, config.listen.is_ipv4())
}

/// Reads `HOST:PORT` lines; empty lines and what follows a `#` do not count.
fn parse_members(path: &Path, text: &str, is_ipv4: bool) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut members = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let fail =
            |why: &str| ConfigError(format!("servers: {}:{}: '{line}' {why}", path.display(), index + 1));
        let address = resolve(line, is_ipv4).ok_or_else(|| fail("is no HOST:PORT that can be found"))?;
        if members.contains(&address) {
            return Err(fail("is listed twice"));
        }
        members.push(address);
    }
    if members.is_empty() || MEMBERS_MAX < members.len() {
        let (path, count) = (path.display(), members.len());
        return Err(ConfigError(format!(
            "servers: {path} lists {count} members; allowed: 1 to {MEMBERS_MAX}"
        )));
    }
    Ok(members)
}

/// The first address of the wanted family.
fn resolve(host_and_port: &str, is_ipv4: bool) -> Option<SocketAddr> {
    let mut addresses = host_and_port.to_socket_addrs().ok()?;
    addresses.find(|address| address.is_ipv4() == is_ipv4 && address.port() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn check(text: &str) -> Result<String, String> {
        let members = parse_members(Path::new("s.txt"), text, true).map_err(|error| error.0)?;
        Ok(members.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_member_list_is_read_or_its_bad_line_is_named() {
        assert_eq!(
            check("127.0.0.1:1\n\n# x\n 127.0.0.2:2 # y\r\n").as_deref(),
            Ok("127.0.0.1:1 127.0.0.2:2")
        );
        let error = |text| check(text).expect_err("not a list");
        assert_eq!(
            error("127.0.0.1:1\n127.0.0.1\n"),
            "servers: s.txt:2: '127.0.0.1' is no HOST:PORT that can be found"
        );
        assert_eq!(error("127.0.0.1:1\n127.0.0.1:1"), "servers: s.txt:2: '127.0.0.1:1' is listed twice");
        assert_eq!(error("# none\n"), "servers: s.txt lists 0 members; allowed: 1 to 4096");
        assert_eq!(error("127.0.0.1:0"), "servers: s.txt:1: '127.0.0.1:0' is no HOST:PORT that can be found");
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
