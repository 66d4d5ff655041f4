//! What the command line prints and the exit code it ends with.
//!
//! Results go to standard output, failures to standard error, each in one line. With `--json` both are
//! objects on standard output, one a line, each with an `outcome`.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use violet_client::{Error, Operation, Reply, SiblingValues, Status, Stored};

const EXIT_NO_SUCH_KEY: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_TIMED_OUT: u8 = 3;
const EXIT_REFUSED: u8 = 4;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The arguments, the server list or a file is wrong.
    Usage(String),
    /// There is no such key.
    NoSuchKey(Vec<u8>),
    /// A server did not do it.
    Server(Error),
    /// A server that was told to leave still answers after this many seconds.
    StillThere(String, u64),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Server(error)
    }
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::NoSuchKey(_) => EXIT_NO_SUCH_KEY,
            Self::Server(error) => exit_code(error),
            Self::StillThere(..) => EXIT_TIMED_OUT,
        }
    }

    fn outcome(&self) -> &'static str {
        match self.exit_code() {
            EXIT_NO_SUCH_KEY => "no such key",
            EXIT_USAGE => "usage",
            EXIT_TIMED_OUT => "timed out",
            _ => "refused",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Usage(message) => message.clone(),
            Self::NoSuchKey(_) => "no such key".into(),
            Self::Server(error) => error.to_string(),
            Self::StillThere(server, seconds) => format!("{server} still answers after {seconds} s"),
        }
    }
}

fn exit_code(error: &Error) -> u8 {
    match error {
        Error::NoServers
        | Error::KeyLength(_)
        | Error::ValueLength(_)
        | Error::ContextLength(_)
        | Error::ValueWithContextLength(_) => EXIT_USAGE,
        Error::TimedOut { .. } | Error::Io { .. } => EXIT_TIMED_OUT,
        Error::Overloaded(_) | Error::Refused { .. } | Error::Incomplete(_) => EXIT_REFUSED,
    }
}

/// Prints as it goes and remembers the exit code.
pub struct Report {
    is_json: bool,
    exit_code: u8,
}

impl Report {
    pub fn new(is_json: bool) -> Self {
        Self { is_json, exit_code: 0 }
    }

    /// The code for the worst that was reported. A time-out outweighs a refusal: asking again may help.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }

    /// A key was stored or removed: nothing to say but in JSON.
    pub fn done(&self, key: &[u8]) -> Result<(), Failure> {
        self.line("", || with_bytes(json!({ "outcome": "success" }), "key", key))
    }

    /// The bare bytes of a value, so that they can go into a file; a terminal gets a line's end as well.
    pub fn found(&self, key: &[u8], found: &Stored) -> Result<(), Failure> {
        if self.is_json {
            return self.line("", || {
                let object = json!({ "outcome": "success", "version": found.version });
                with_bytes(with_bytes(object, "key", key), "value", &found.bytes)
            });
        }
        let end: &[u8] = if io::stdout().is_terminal() { b"\n" } else { b"" };
        print(&[&found.bytes, end])
    }

    /// A key was stored with a context, and this is the new one.
    pub fn done_with_context(&self, key: &[u8], context: &[u8]) -> Result<(), Failure> {
        self.line(&format!("context {}", hex(context)), || {
            with_bytes(json!({ "outcome": "success", "context": hex(context) }), "key", key)
        })
    }

    /// A line for each value, with its version and the text, or hex where text would not be one clear line;
    /// then one for the context.
    pub fn siblings(&self, key: &[u8], siblings: &SiblingValues) -> Result<(), Failure> {
        let context = hex(&siblings.context);
        let mut text: String = siblings.values.iter().map(|value| sibling_line(value) + "\n").collect();
        text += &format!("context {context}");
        self.line(&text, || {
            let value =
                |value: &Stored| with_bytes(json!({ "version": value.version }), "value", &value.bytes);
            let values: Vec<Value> = siblings.values.iter().map(value).collect();
            let object = json!({ "outcome": "success", "context": context, "values": values });
            with_bytes(object, "key", key)
        })
    }

    /// A server that was told to leave still answers: what to read while waiting, not a result.
    pub fn still_leaving(&self, name: &str, seconds: u64) {
        eprintln!("violet-client: {name} is still leaving after {seconds} s");
    }

    /// A server that was told to leave answers no more.
    pub fn left(&self, name: &str) -> Result<(), Failure> {
        self.line(&format!("{name} left"), || json!({ "outcome": "success", "server": name }))
    }

    /// The member list that one server gave.
    pub fn members(&mut self, name: &str, address: SocketAddr, reply: &Reply) -> Result<(), Failure> {
        let text = successful(address, reply, Reply::text)?;
        self.line(text.trim_end(), || {
            let members: Vec<&str> = text.lines().collect();
            json!({ "outcome": "success", "server": name, "members": members })
        })
    }

    /// Who answers for a key, as a server sees it.
    pub fn holders(&self, key: &[u8], name: &str, address: SocketAddr, reply: &Reply) -> Result<(), Failure> {
        let text = successful(address, reply, Reply::text)?;
        self.line(text.trim_end(), || {
            let holders: Vec<&str> = text.lines().collect();
            let object = json!({ "outcome": "success", "server": name, "holders": holders });
            with_bytes(object, "key", key)
        })
    }

    /// One server's answer to a question about itself, or why it has none.
    pub fn answer(
        &mut self,
        name: &str,
        address: SocketAddr,
        operation: &Operation<'_>,
        result: Result<Reply, Error>,
    ) -> Result<(), Failure> {
        match result.and_then(|reply| shown(address, operation, &reply)) {
            Ok((text, field)) => self.line(&format!("{name} {text}"), || {
                let mut object = json!({ "outcome": "success", "server": name });
                if let (Some(object), Some((key, value))) = (object.as_object_mut(), field) {
                    object.insert(key.to_owned(), value);
                }
                object
            }),
            Err(error) => {
                self.failure_of(Some(name), &Failure::Server(error));
                Ok(())
            }
        }
    }

    /// A failure of the whole command.
    pub fn failure(&mut self, failure: &Failure) {
        self.failure_of(None, failure);
    }

    fn failure_of(&mut self, server: Option<&str>, failure: &Failure) {
        if self.exit_code != EXIT_TIMED_OUT {
            self.exit_code = failure.exit_code();
        }
        let message = failure.message();
        if !self.is_json {
            eprintln!("violet-client: {message}");
            return;
        }
        let mut object = json!({ "outcome": failure.outcome(), "error": message });
        if let (Some(object), Some(server)) = (object.as_object_mut(), server) {
            object.insert("server".into(), server.into());
        }
        if let Failure::NoSuchKey(key) = failure {
            object = with_bytes(object, "key", key);
        }
        // Nobody is left to tell when this fails; the exit code still says it.
        let _ = print(&[format!("{object}\n").as_bytes()]);
    }

    /// Prints a line of text, unless it is empty, or the object that says the same.
    fn line(&self, text: &str, object: impl FnOnce() -> Value) -> Result<(), Failure> {
        match (self.is_json, text) {
            (true, _) => print(&[format!("{}\n", object()).as_bytes()]),
            (false, "") => Ok(()),
            (false, text) => print(&[text.as_bytes(), b"\n"]),
        }
    }
}

type Field = (&'static str, Value);

/// What to print for a reply: the text of a line, and the field of an object.
fn shown(
    address: SocketAddr,
    operation: &Operation<'_>,
    reply: &Reply,
) -> Result<(String, Option<Field>), Error> {
    let number = |name, number: i32| (number.to_string(), Some((name, number.into())));
    Ok(match operation {
        // Any answer is a sign of life; old servers answer that they do not know the command.
        Operation::IsAlive => ("alive".into(), None),
        Operation::GetPid => number("pid", successful(address, reply, |reply| reply.pid)?),
        Operation::GetMembershipCount => {
            number("members", successful(address, reply, |reply| reply.membership_count)?)
        }
        Operation::GetStats => {
            let text = successful(address, reply, Reply::text)?;
            let stats = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text.as_str()));
            (text.trim_end().replace('\n', " "), Some(("stats", stats)))
        }
        Operation::Wipeout => (successful(address, reply, |_| Some("wiped out"))?.into(), None),
        Operation::Shutdown => (successful(address, reply, |_| Some("shut down"))?.into(), None),
        Operation::Leave => (successful(address, reply, |_| Some("leaving"))?.into(), None),
        Operation::Put { .. }
        | Operation::Get { .. }
        | Operation::Remove { .. }
        | Operation::GetMembershipList
        | Operation::PutWithContext { .. }
        | Operation::GetSiblings { .. }
        | Operation::Locate { .. }
        | Operation::GetPlacement { .. }
        | Operation::Unknown(_) => (reply.status.to_string(), None),
    })
}

/// A part of a successful reply.
fn successful<T>(
    server: SocketAddr,
    reply: &Reply,
    part: impl FnOnce(&Reply) -> Option<T>,
) -> Result<T, Error> {
    match reply.status {
        Status::Success => part(reply).ok_or(Error::Incomplete(server)),
        status => Err(Error::Refused { server, status }),
    }
}

/// Adds bytes to an object: as text if they are, else in hex under another name.
fn with_bytes(mut object: Value, name: &str, bytes: &[u8]) -> Value {
    let (name, text) = match std::str::from_utf8(bytes) {
        Ok(text) => (name.to_owned(), text.to_owned()),
        Err(_) => (format!("{name}_hex"), hex(bytes)),
    };
    if let Some(object) = object.as_object_mut() {
        Map::insert(object, name, text.into());
    }
    object
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sibling_line(value: &Stored) -> String {
    match std::str::from_utf8(&value.bytes) {
        Ok(text) if !text.contains(char::is_control) => format!("value {} {text}", value.version),
        _ => format!("value-hex {} {}", value.version, hex(&value.bytes)),
    }
}

/// Writes to standard output. A reader that has gone away wants no more, which is no failure.
fn print(parts: &[&[u8]]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = parts.iter().try_for_each(|part| out.write_all(part)).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Usage(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
