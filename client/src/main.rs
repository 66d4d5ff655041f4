//! The command line of the client: parses arguments, asks the servers, prints, and says by its exit
//! code how it went. See [`args`] for what can be said and [`report`] for what is printed.

mod args;
mod report;

use std::ffi::OsString;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use args::{Arguments, Command, FormatName, KeyArguments, Reach};
use clap::Parser;
use report::{Failure, Report};
use violet_client::{Client, Operation, Server, servers};

/// How often to say that a server is still leaving.
const PROGRESS_SECONDS: u64 = 5;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut report = Report::new(arguments.json);
    if let Err(failure) = run(arguments, &mut report) {
        report.failure(&failure);
    }
    report.exit_code()
}

fn run(arguments: Arguments, report: &mut Report) -> Result<(), Failure> {
    let policy = arguments.retry_policy();
    let list = arguments.servers.as_deref().ok_or_else(|| {
        Failure::Usage("no servers; give --servers FILE or HOST:PORT[,...], or set VIOLET_SERVERS".into())
    })?;
    let servers = servers::load(list).map_err(|error| Failure::Usage(error.to_string()))?;
    let addresses = servers.iter().map(|server| server.address).collect();
    if let (Command::Put { version, .. }, FormatName::Raw) = (&arguments.command, arguments.format)
        && *version != 0
    {
        return Err(Failure::Usage("the raw format has no versions; leave --version out".into()));
    }
    let mut client = Client::new(addresses)?.with_format(arguments.format.into()).with_policy(policy);
    if arguments.no_second_server {
        client = client.without_second_server();
    }
    if arguments.zero_hop {
        client = client.with_zero_hop();
    }
    let mut session = Session { client, servers, report };
    match arguments.command {
        Command::Put { key, value, file, version, context: None } => session.put(&key, value, file, version),
        Command::Put { key, value, file, version, context: Some(context) } => {
            session.put_with_context(&key, &value_bytes(value, file)?, version, &context)
        }
        Command::Siblings { key } => session.siblings(&key),
        Command::Get { key } => session.get(&key),
        Command::Remove { key } => session.remove(&key),
        Command::Alive(reach) => session.each(&reach, Operation::IsAlive),
        Command::Pid(reach) => session.each(&reach, Operation::GetPid),
        Command::Members(reach) => session.each(&reach, Operation::GetMembershipCount),
        Command::List => session.list(),
        Command::Where { key } => session.locate(&key),
        Command::Stats(reach) => session.each(&reach, Operation::GetStats),
        Command::Wipeout(reach) => session.each(&reach, Operation::Wipeout),
        Command::Shutdown { all } => session.shutdown(all),
        Command::Leave { wait_seconds } => session.leave(wait_seconds),
    }
}

/// One run of the program.
struct Session<'a> {
    client: Client,
    servers: Vec<Server>,
    report: &'a mut Report,
}

impl Session<'_> {
    fn put(
        &mut self,
        key: &KeyArguments,
        value: Option<OsString>,
        file: Option<PathBuf>,
        version: i32,
    ) -> Result<(), Failure> {
        let key = key_bytes(key)?;
        self.client.put(&key, &value_bytes(value, file)?, version)?;
        self.report.done(&key)
    }

    fn put_with_context(
        &mut self,
        key: &KeyArguments,
        value: &[u8],
        version: i32,
        context: &str,
    ) -> Result<(), Failure> {
        let key = key_bytes(key)?;
        let context = from_hex(context.as_bytes())
            .ok_or_else(|| Failure::Usage(format!("\"{context}\" is no context in hex")))?;
        let context = self.client.put_with_context(&key, value, version, &context)?;
        self.report.done_with_context(&key, &context)
    }

    fn siblings(&mut self, key: &KeyArguments) -> Result<(), Failure> {
        let key = key_bytes(key)?;
        match self.client.get_siblings(&key)? {
            Some(siblings) => self.report.siblings(&key, &siblings),
            None => Err(Failure::NoSuchKey(key)),
        }
    }

    fn get(&mut self, key: &KeyArguments) -> Result<(), Failure> {
        let key = key_bytes(key)?;
        match self.client.get(&key)? {
            Some(found) => self.report.found(&key, &found),
            None => Err(Failure::NoSuchKey(key)),
        }
    }

    fn remove(&mut self, key: &KeyArguments) -> Result<(), Failure> {
        let key = key_bytes(key)?;
        if !self.client.remove(&key)? {
            return Err(Failure::NoSuchKey(key));
        }
        self.report.done(&key)
    }

    fn list(&mut self) -> Result<(), Failure> {
        let (address, reply) = self.client.ask_any(Operation::GetMembershipList)?;
        self.report.members(&self.name_of(address), address, &reply)
    }

    fn locate(&mut self, key: &KeyArguments) -> Result<(), Failure> {
        let key = key_bytes(key)?;
        let wanted =
            violet_client::Key::parse(&key).map_err(|_| violet_client::Error::KeyLength(key.len()))?;
        let (address, reply) = self.client.ask_any(Operation::Locate { key: wanted })?;
        self.report.holders(&key, &self.name_of(address), address, &reply)
    }

    fn shutdown(&mut self, all: bool) -> Result<(), Failure> {
        if !all && 1 < self.servers.len() {
            let count = self.servers.len();
            return Err(Failure::Usage(format!(
                "the list has {count} servers; name the one to shut down with --servers HOST:PORT, \
                 or say --all"
            )));
        }
        self.each(&Reach { one: false }, Operation::Shutdown)
    }

    /// Tells the one server to leave and waits for it, with a word now and then to whoever waits too.
    fn leave(&mut self, wait_seconds: u64) -> Result<(), Failure> {
        let [server] = &self.servers[..] else {
            let count = self.servers.len();
            return Err(Failure::Usage(format!(
                "the list has {count} servers; name the one that is to leave with --servers HOST:PORT"
            )));
        };
        let (name, address) = (server.name.clone(), server.address);
        self.client.leave(address)?;
        let mut said_at = 0;
        let on_answer = |waited: Duration| {
            let seconds = waited.as_secs();
            if said_at + PROGRESS_SECONDS <= seconds {
                said_at = seconds;
                self.report.still_leaving(&name, seconds);
            }
        };
        let limit = Duration::from_secs(wait_seconds);
        if !self.client.wait_until_gone(address, limit, on_answer)? {
            return Err(Failure::StillThere(name, wait_seconds));
        }
        self.report.left(&name)
    }

    /// Asks all servers, or one and no other, and prints a line for each.
    fn each(&mut self, reach: &Reach, operation: Operation<'_>) -> Result<(), Failure> {
        let addresses: Vec<SocketAddr> = match reach.one {
            true => vec![self.client.random_server()],
            false => self.client.servers().to_vec(),
        };
        let results = self.client.ask_each(&addresses, operation);
        for (address, result) in addresses.into_iter().zip(results) {
            self.report.answer(&self.name_of(address), address, &operation, result)?;
        }
        Ok(())
    }

    fn name_of(&self, address: SocketAddr) -> String {
        let known = self.servers.iter().find(|server| server.address == address);
        known.map_or_else(|| address.to_string(), |server| server.name.clone())
    }
}

fn key_bytes(key: &KeyArguments) -> Result<Vec<u8>, Failure> {
    let written = key.key.clone().into_encoded_bytes();
    if !key.key_hex {
        return Ok(written);
    }
    from_hex(&written)
        .ok_or_else(|| Failure::Usage(format!("\"{}\" is no key in hex", key.key.to_string_lossy())))
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

fn value_bytes(value: Option<OsString>, file: Option<PathBuf>) -> Result<Vec<u8>, Failure> {
    if let Some(path) = file {
        let read = std::fs::read(&path);
        return read.map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())));
    }
    match value {
        Some(value) if value != "-" => Ok(value.into_encoded_bytes()),
        _ => {
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| Failure::Usage(format!("cannot read standard input: {error}")))?;
            Ok(bytes)
        }
    }
}
