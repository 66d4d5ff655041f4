//! The agent: waits for a crew, and makes the loads that it orders.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::clock;
use super::message::{FromAgent, PROTOCOL, ToAgent, receive, receive_up_to, send};
use crate::host::{self, this_machine};
use crate::interrupt::Stop;
use crate::load::Glimpse;
use crate::plan::{CheckOrder, Loader, OwnLoader};
use crate::result::Machine;

/// How long a greeting may take.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Longest greeting in bytes.
const GREETING_BYTES_MAX: u32 = 4_096;
/// How often the listener looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// How long a crew waits for the one before it to be gone; less than it waits for its welcome.
const HANDOVER_MAX: Duration = Duration::from_secs(2);
/// Connections at a time, strangers included.
const CONNECTIONS_MAX: usize = 16;
/// No phase may begin later than this: such an order is a mistake.
const START_MAX: Duration = Duration::from_secs(60);
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 1_024;

/// Options of `agent`.
#[derive(Clone, Debug, Args)]
pub struct AgentArguments {
    /// Where orders are taken. Beyond loopback only with a token: whoever gives orders can make load against anybody.
    #[arg(long, default_value = "127.0.0.1:7531", value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// A file with a secret; whoever gives orders must have the same.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Reads a token; white space around it does not count.
///
/// # Errors
/// A sentence that names the file.
pub fn read_token(path: &Path) -> Result<String, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("--token-file {}: {error}", path.display()))?;
    let token = text.trim();
    if (8..=TOKEN_BYTES_MAX).contains(&token.len()) {
        Ok(token.to_owned())
    } else {
        Err(format!(
            "--token-file {}: must hold 8 to {TOKEN_BYTES_MAX} bytes, not {}",
            path.display(),
            token.len()
        ))
    }
}

/// Runs the command, until a signal ends it.
///
/// # Errors
/// Wrong usage, in one sentence.
pub fn run(arguments: &AgentArguments) -> Result<bool, String> {
    let token = arguments.token_file.as_deref().map(read_token).transpose()?;
    let listen = arguments.listen;
    if !listen.ip().is_loopback() && token.is_none() {
        return Err(format!(
            "--listen {listen}: beyond loopback an agent needs --token-file, or it would make load for anybody"
        ));
    }
    let listener = TcpListener::bind(listen).map_err(|error| format!("--listen {listen}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let stop = Stop::on_signals().map_err(|error| format!("cannot catch signals: {error}"))?;
    println!("agent ready at {address}{}", if token.is_some() { ", with a token" } else { "" });
    serve(&listener, token.as_deref(), &stop).map_err(|error| format!("--listen {listen}: {error}"))?;
    Ok(true)
}

/// Serves crews, one run at a time, until told to stop.
pub fn serve(listener: &TcpListener, token: Option<&str>, stop: &Stop) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let is_busy = Arc::new(AtomicBool::new(false));
    let connections = Arc::new(AtomicUsize::new(0));
    while !stop.is_set() {
        match listener.accept() {
            Ok((stream, peer)) => {
                if CONNECTIONS_MAX <= connections.load(Ordering::Relaxed) {
                    continue;
                }
                connections.fetch_add(1, Ordering::Relaxed);
                let (is_busy, connections) = (Arc::clone(&is_busy), Arc::clone(&connections));
                let (token, stop) = (token.map(str::to_owned), stop.clone());
                thread::spawn(move || {
                    match greet(&stream, token.as_deref(), &is_busy) {
                        Ok(Some(_turn)) => {
                            println!("run of {peer} begins");
                            let ended = work(&stream, &stop);
                            let how = ended.map_or_else(|error| format!(": {error}"), |()| String::new());
                            println!("run of {peer} ended{how}");
                        }
                        Ok(None) => println!("{peer} was refused"),
                        // Strangers may send anything.
                        Err(error) => println!("{peer} is no crew: {error}"),
                    }
                    connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The right to make load, which one crew has at a time.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether the right to make load is free, or becomes so at once: the run before may be over for its crew and not yet here.
fn takes_turn(is_busy: &AtomicBool) -> bool {
    let until = Instant::now() + HANDOVER_MAX;
    while is_busy.swap(true, Ordering::Acquire) {
        if until <= Instant::now() {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// Exchanges greetings; `None` if the crew was refused.
fn greet<'a>(
    mut stream: &TcpStream,
    token: Option<&str>,
    is_busy: &'a AtomicBool,
) -> io::Result<Option<Turn<'a>>> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_MAX))?;
    stream.set_write_timeout(Some(GREETING_MAX))?;
    let ToAgent::Hello { protocol, version, token: theirs } = receive_up_to(&mut stream, GREETING_BYTES_MAX)?
    else {
        return Err(io::Error::new(ErrorKind::InvalidData, "it does not greet"));
    };
    let own_version = env!("CARGO_PKG_VERSION");
    let mut refusal = match token {
        Some(token) if !is_equal(token, theirs.as_deref().unwrap_or_default()) => {
            Some("wrong token: --token-file must name the same secret on both sides".to_owned())
        }
        _ if protocol != PROTOCOL => Some(format!(
            "this agent speaks version {PROTOCOL} of the agents' protocol (program {own_version}), not {protocol} \
             (program {version}); use the same program everywhere"
        )),
        _ => None,
    };
    let turn = match refusal {
        Some(_) => None,
        None if !takes_turn(is_busy) => {
            refusal = Some("this agent makes load for somebody else".to_owned());
            None
        }
        None => Some(Turn(is_busy)),
    };
    match refusal {
        Some(why) => send(&mut stream, &FromAgent::Refused { why })?,
        None => {
            let welcome = FromAgent::Welcome {
                protocol: PROTOCOL,
                version: own_version.to_owned(),
                machine: this_machine(),
            };
            send(&mut stream, &welcome)?;
        }
    }
    stream.set_read_timeout(None)?;
    Ok(turn)
}

/// Compares in a time that does not say how much is right.
fn is_equal(left: &str, right: &str) -> bool {
    let differences = left.bytes().zip(right.bytes()).fold(0, |sum, (left, right)| sum | (left ^ right));
    left.len() == right.len() && differences == 0
}

/// What is left to do for the thread that makes load.
enum Task {
    Run(Box<crate::plan::Order>, u64),
    Check(Box<CheckOrder>),
    Forget,
}

type Writer = Arc<Mutex<TcpStream>>;

fn say(writer: &Writer, message: &FromAgent) -> io::Result<()> {
    send(&mut *writer.lock().unwrap_or_else(PoisonError::into_inner), message)
}

/// Takes orders until the connection ends.
fn work(stream: &TcpStream, agent_stop: &Stop) -> io::Result<()> {
    let writer: Writer = Arc::new(Mutex::new(stream.try_clone()?));
    // Of this connection: its end stops the load, whatever that does at the moment.
    let stop = Stop::default();
    let (tasks, queue) = mpsc::channel();
    let (reader, answers, phase_stop) = (stream.try_clone()?, Arc::clone(&writer), stop.clone());
    let listener = thread::spawn(move || listen(reader, &answers, &phase_stop, &tasks));
    let watch = {
        let (from, to) = (agent_stop.clone(), stop.clone());
        thread::spawn(move || pass_on(&from, &to))
    };
    let done = carry_out(&queue, &writer, &stop);
    // Wakes the listening thread, should it still wait.
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let _ = listener.join();
    stop.set();
    let _ = watch.join();
    done
}

fn pass_on(from: &Stop, to: &Stop) {
    while !to.is_set() {
        if from.is_set() {
            to.set();
        }
        thread::sleep(LOOK);
    }
}

/// Answers what cannot wait, and hands on what can.
fn listen(mut stream: TcpStream, writer: &Writer, stop: &Stop, tasks: &Sender<Task>) {
    let ticks = host::ticks();
    while let Ok(message) = receive::<ToAgent>(&mut stream) {
        let is_well = match message {
            ToAgent::Clock => say(writer, &FromAgent::Clock { unix_nanos: clock::unix_nanos() }).is_ok(),
            ToAgent::Run { order, at_unix_nanos } => tasks.send(Task::Run(order, at_unix_nanos)).is_ok(),
            ToAgent::Check { order } => tasks.send(Task::Check(order)).is_ok(),
            ToAgent::Forget => tasks.send(Task::Forget).is_ok(),
            ToAgent::Machine => {
                let mut machine = Machine::default();
                host::after(&mut machine, ticks);
                let (load_average, steal_share) = (machine.load_average_after, machine.steal_share);
                say(writer, &FromAgent::Machine { load_average, steal_share }).is_ok()
            }
            ToAgent::Stop => {
                stop.set();
                true
            }
            ToAgent::Hello { .. } => false,
        };
        if !is_well {
            break;
        }
    }
    stop.set();
}

fn carry_out(queue: &Receiver<Task>, writer: &Writer, stop: &Stop) -> io::Result<()> {
    let mut loader = OwnLoader::default();
    while let Ok(task) = queue.recv() {
        match task {
            Task::Forget => loader.forget(),
            Task::Check(order) => {
                let outcome = loader.check(&order, stop, &mut |checked| {
                    // A connection that is gone is noticed by the thread that reads it.
                    let _ = say(writer, &FromAgent::Stage { checked });
                });
                say(writer, &FromAgent::StagesDone { why: outcome.err() })?;
            }
            Task::Run(order, at_unix_nanos) => {
                let wait = Duration::from_nanos(at_unix_nanos.saturating_sub(clock::unix_nanos()));
                if START_MAX < wait {
                    let why = format!("told to begin in {} s; the clocks do not fit", wait.as_secs());
                    say(writer, &FromAgent::Failed { why })?;
                    continue;
                }
                sleep_exactly(stop, at_unix_nanos);
                let mut watch = |glimpse: &Glimpse| {
                    // A connection that is gone is noticed by the thread that reads it.
                    let _ = say(writer, &FromAgent::Glimpse { glimpse: *glimpse });
                };
                let outcome = loader.load(&order, stop, &mut watch);
                let message = match outcome {
                    Ok(phase) => {
                        let (faults, remarks) = (loader.faults(), loader.remarks());
                        FromAgent::Done { phase: Box::new(phase), faults, remarks }
                    }
                    Err(why) => FromAgent::Failed { why },
                };
                say(writer, &message)?;
            }
        }
    }
    Ok(())
}

/// Sleeps until a moment of this clock: coarsely, as long as the end may be asked for, and then to the point.
fn sleep_exactly(stop: &Stop, at_unix_nanos: u64) {
    let left = || Duration::from_nanos(at_unix_nanos.saturating_sub(clock::unix_nanos()));
    stop.sleep(left().saturating_sub(LOOK));
    if !stop.is_set() {
        thread::sleep(left());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_there_must_be_a_token() {
        let listen = "0.0.0.0:0".parse().unwrap();
        let refused = run(&AgentArguments { listen, token_file: None }).unwrap_err();
        assert!(refused.contains("needs --token-file"), "{refused}");
        assert!(read_token(Path::new("/no/token")).unwrap_err().starts_with("--token-file /no/token: "));
    }

    #[test]
    fn tokens_are_compared_as_a_whole() {
        assert!(is_equal("secret-1", "secret-1"));
        for other in ["", "secret-", "secret-2", "secret-11"] {
            assert!(!is_equal("secret-1", other), "{other}");
        }
    }
}
