//! Lists of servers: a file with one `host:port` a line (and a site behind it, if there is one), or `HOST:PORT[,HOST:PORT...]` on a command line.
//!
//! Files come from many hands, so lines may end in CR LF or blanks, be empty, or start a comment with
//! `#`. Anything else that is not a server is an error that names the line: a node left out in silence
//! would be found much later. Entries keep their order and their spelling, and are not merged.
//!
//! Deliberately not here: asking a name server again later; an address is looked up once.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

/// One server of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As the list spells it.
    pub name: String,
    /// Where it is.
    pub address: SocketAddr,
    /// Its site, if a file names one behind it.
    pub site: Option<String>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Why there is no list of servers.
#[derive(Debug)]
pub enum ServersError {
    /// The file cannot be read.
    Unreadable {
        /// The file's path.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// There is no such file, and it does not look like `HOST:PORT` either.
    NeitherFileNorServer(String),
    /// There are no servers in it.
    Empty {
        /// The file's path; `None` for a list on the command line.
        path: Option<String>,
    },
    /// An entry is no server.
    Entry {
        /// The file's path and the line's number, counted from 1; `None` on the command line.
        place: Option<(String, usize)>,
        /// The entry as written.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for ServersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => write!(f, "cannot read server list {path}: {source}"),
            Self::NeitherFileNorServer(text) => {
                write!(f, "\"{text}\" is neither an existing file nor HOST:PORT")
            }
            Self::Empty { path: Some(path) } => write!(f, "server list {path} has no servers in it"),
            Self::Empty { path: None } => f.write_str("the server list is empty"),
            Self::Entry { place: Some((path, line)), text, reason } => {
                write!(f, "{path} line {line}: \"{text}\": {reason}")
            }
            Self::Entry { place: None, text, reason } => write!(f, "server \"{text}\": {reason}"),
        }
    }
}

impl std::error::Error for ServersError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::NeitherFileNorServer(_) | Self::Empty { .. } | Self::Entry { .. } => None,
        }
    }
}

/// Reads what a user gave: the path of a file if there is one, else `HOST:PORT[,HOST:PORT...]`.
///
/// # Errors
/// [`ServersError`] says what is wrong and where. The list is never empty.
pub fn load(given: &str) -> Result<Vec<Server>, ServersError> {
    if Path::new(given).exists() {
        let read = std::fs::read(given);
        let bytes = read.map_err(|source| ServersError::Unreadable { path: given.to_owned(), source })?;
        return parse_file(given, &String::from_utf8_lossy(&bytes));
    }
    if !given.is_empty() && !given.contains(':') {
        return Err(ServersError::NeitherFileNorServer(given.to_owned()));
    }
    parse_list(given)
}

/// Parses the text of a server file; `path` is only for messages.
///
/// # Errors
/// [`ServersError`] names the first bad line.
pub fn parse_file(path: &str, text: &str) -> Result<Vec<Server>, ServersError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut servers = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        let place = || Some((path.to_owned(), index + 1));
        let server = with_site(entry).map_err(|reason| {
            let text = line.trim().to_owned();
            ServersError::Entry { place: place(), text, reason }
        })?;
        servers.push(server);
    }
    if servers.is_empty() {
        return Err(ServersError::Empty { path: Some(path.to_owned()) });
    }
    Ok(servers)
}

/// Parses `HOST:PORT[,HOST:PORT...]`.
///
/// # Errors
/// [`ServersError`] names the first bad entry.
pub fn parse_list(text: &str) -> Result<Vec<Server>, ServersError> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let servers = entries.map(|entry| {
        resolve(entry).map_err(|reason| ServersError::Entry { place: None, text: entry.to_owned(), reason })
    });
    let servers = servers.collect::<Result<Vec<Server>, ServersError>>()?;
    if servers.is_empty() {
        return Err(ServersError::Empty { path: None });
    }
    Ok(servers)
}

/// Takes a line of a file apart: `HOST:PORT`, and a site if there is a second column.
fn with_site(line: &str) -> Result<Server, String> {
    let mut columns = line.split_whitespace();
    let (entry, site) = (columns.next().unwrap_or_default(), columns.next());
    if columns.next().is_some() || site.is_some_and(|site| site.contains(':')) {
        return Err("write one HOST:PORT and at most one SITE (without a colon)".into());
    }
    Ok(Server { site: site.map(str::to_owned), ..resolve(entry)? })
}

/// Takes one entry apart and looks its host up. Of several addresses the first IPv4 one is taken, if
/// there is any: `localhost` is often both, and servers mostly listen on IPv4.
fn resolve(entry: &str) -> Result<Server, String> {
    let (host, port) = entry.rsplit_once(':').ok_or("no port; write HOST:PORT")?;
    let port = match port.parse::<u16>() {
        Ok(number) if 0 < number && !port.starts_with('+') => number,
        _ => return Err(format!("port \"{port}\" is not a number from 1 to 65535")),
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bracketed {
        Some(host) => host,
        None if host.contains(':') => return Err("an IPv6 address needs brackets: [ADDRESS]:PORT".into()),
        None => host,
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err("no host; write one HOST:PORT".into());
    }
    let found =
        (host, port).to_socket_addrs().map_err(|error| format!("cannot look up the host: {error}"))?;
    let addresses: Vec<SocketAddr> = found.collect();
    let address = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    let address = *address.ok_or("the host has no address")?;
    Ok(Server { name: entry.to_owned(), address, site: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(parsed: Result<Vec<Server>, ServersError>, expected: Expect) {
        let text = match parsed {
            Ok(servers) => servers.iter().map(|s| format!("{s} = {}\n", s.address)).collect(),
            Err(error) => format!("{error}\n"),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn files_of_all_kinds() {
        let text = "\u{feff}# the first one is never killed\r\n127.0.0.1:4001\r\n\r\n  127.0.0.2:4002  \n\
                    [::1]:4003\t# spare\n127.0.0.1:4001";
        check(
            parse_file("list.txt", text),
            expect![[r#"
                127.0.0.1:4001 = 127.0.0.1:4001
                127.0.0.2:4002 = 127.0.0.2:4002
                [::1]:4003 = [::1]:4003
                127.0.0.1:4001 = 127.0.0.1:4001
            "#]],
        );
    }

    #[test]
    fn a_name_is_looked_up() {
        check(
            parse_list("localhost:4001"),
            expect![[r#"
                localhost:4001 = 127.0.0.1:4001
            "#]],
        );
    }

    #[test]
    fn lists_on_a_command_line() {
        check(
            parse_list("127.0.0.1:4001, 127.0.0.1:4002,"),
            expect![[r#"
                127.0.0.1:4001 = 127.0.0.1:4001
                127.0.0.1:4002 = 127.0.0.1:4002
            "#]],
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let bad = [
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:0",
            "127.0.0.1:70000",
            "127.0.0.1:+1 x",
            ":4001",
            "::1:4001",
            "a b:4001",
            "127.0.0.1:4001 127.0.0.1:4002",
        ];
        let mut all = String::new();
        for line in bad {
            let error = parse_file("list.txt", &format!("127.0.0.1:4001\n\n{line}\n")).unwrap_err();
            all += &format!("{error}\n");
        }
        expect![[r#"
            list.txt line 3: "127.0.0.1": no port; write HOST:PORT
            list.txt line 3: "127.0.0.1:": port "" is not a number from 1 to 65535
            list.txt line 3: "127.0.0.1:0": port "0" is not a number from 1 to 65535
            list.txt line 3: "127.0.0.1:70000": port "70000" is not a number from 1 to 65535
            list.txt line 3: "127.0.0.1:+1 x": port "+1" is not a number from 1 to 65535
            list.txt line 3: ":4001": no host; write one HOST:PORT
            list.txt line 3: "::1:4001": an IPv6 address needs brackets: [ADDRESS]:PORT
            list.txt line 3: "a b:4001": write one HOST:PORT and at most one SITE (without a colon)
            list.txt line 3: "127.0.0.1:4001 127.0.0.1:4002": write one HOST:PORT and at most one SITE (without a colon)
        "#]]
        .assert_eq(&all);
    }

    #[test]
    fn nothing_is_an_error() {
        check(
            parse_file("list.txt", "\r\n# nobody\n"),
            expect![[r#"
                server list list.txt has no servers in it
            "#]],
        );
        check(
            load(""),
            expect![[r#"
                the server list is empty
            "#]],
        );
        check(
            load("no-such-file"),
            expect![[r#"
                "no-such-file" is neither an existing file nor HOST:PORT
            "#]],
        );
    }
}
