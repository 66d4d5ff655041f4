//! The crew: agents that make the loads of a plan together.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::clock::{self, Offset, QUESTIONS, RoundTrip};
use super::merge::merge;
use super::message::{FromAgent, PROTOCOL, ToAgent, receive, send};
use super::share::share;
use crate::interrupt::Stop;
use crate::load::Glimpse;
use crate::plan::{CheckOrder, Checked, Loader, Order, Work};
use crate::result::{Machine, Phase};

/// How long a connection and a greeting may take.
pub(super) const GREETING_MAX: Duration = Duration::from_secs(5);
/// From the order of a phase to its beginning, and what is added for each agent's error.
const LEAD: Duration = Duration::from_millis(300);
/// Beyond its planned end a phase may take this long, its last requests' retries included.
const OVERTIME_MAX: Duration = Duration::from_secs(30);
/// A fill lasts as long as it takes; without word for so long, its agent is lost.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether the run shall end.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// One agent.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) stream: TcpStream,
    offset: Offset,
    is_lost: bool,
}

/// All agents of a run, in the order of the command line.
#[derive(Debug)]
pub struct Crew {
    pub(super) members: Vec<Member>,
    losses: Vec<String>,
    faults: Vec<String>,
    remarks: Vec<String>,
}

/// A crew that has met: where it runs, and what should be known about it.
pub struct Met {
    /// The crew.
    pub crew: Crew,
    /// The agents' machines.
    pub machines: Vec<Machine>,
    /// Warnings, one sentence each.
    pub warnings: Vec<String>,
}

impl Crew {
    /// Greets all agents and reads their clocks.
    ///
    /// # Errors
    /// One sentence that names the agent and what would be right: a run with fewer agents is another run.
    pub fn meet(names: &[String], token: Option<&str>) -> Result<Met, String> {
        let mut met = Met {
            crew: Self { members: Vec::new(), losses: Vec::new(), faults: Vec::new(), remarks: Vec::new() },
            machines: Vec::new(),
            warnings: Vec::new(),
        };
        for name in names {
            if met.crew.members.iter().any(|member| member.name == *name) {
                return Err(format!("--agents names {name} twice"));
            }
            let mut stream = connect(name)?;
            met.machines.push(greet(name, &mut stream, token)?);
            let offset =
                read_clock(&mut stream).map_err(|error| format!("agent {name}: its clock: {error}"))?;
            met.warnings.extend(offset.judge(name)?);
            stream.set_read_timeout(None).map_err(|error| format!("agent {name}: {error}"))?;
            met.crew.members.push(Member { name: name.clone(), stream, offset, is_lost: false });
        }
        Ok(met)
    }

    pub(super) fn lose(&mut self, place: usize, why: &str) {
        let member = &mut self.members[place];
        if !std::mem::replace(&mut member.is_lost, true) {
            self.losses.push(format!("agent {} was lost: {why}", member.name));
        }
    }

    pub(super) fn present(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&place| !self.members[place].is_lost).collect()
    }

    /// Gives each agent its share; those that have one.
    fn give_orders(&mut self, order: &Order) -> Vec<usize> {
        let present = self.present();
        let error = self.members.iter().map(|member| member.offset.error).max().unwrap_or_default();
        let start = clock::unix_nanos() + u64::try_from((LEAD + 2 * error).as_nanos()).unwrap_or(u64::MAX);
        let mut ordered = Vec::new();
        for (turn, &place) in present.iter().enumerate() {
            let Some(share) = share(order, turn, present.len(), place, self.members.len()) else { continue };
            let at_unix_nanos = self.members[place].offset.theirs(start);
            let message = ToAgent::Run { order: Box::new(share), at_unix_nanos };
            match send(&mut &self.members[place].stream, &message) {
                Ok(()) => ordered.push(place),
                Err(error) => self.lose(place, &error.to_string()),
            }
        }
        ordered
    }

    pub(super) fn tell(&mut self, places: &[usize], message: &ToAgent) {
        for &place in places {
            if let Err(error) = send(&mut &self.members[place].stream, message) {
                self.lose(place, &error.to_string());
            }
        }
    }
}

impl Loader for Crew {
    fn load(&mut self, order: &Order, stop: &Stop, watch: &mut dyn FnMut(&Glimpse)) -> Result<Phase, String> {
        let ordered = self.give_orders(order);
        let (sender, news) = mpsc::channel();
        for &place in &ordered {
            let stream = self.members[place].stream.try_clone();
            let stream = stream.map_err(|error| format!("agent {}: {error}", self.members[place].name))?;
            let sender = sender.clone();
            thread::spawn(move || hear(place, stream, &sender));
        }
        drop(sender);
        let mut gathering = Gathering {
            glimpses: vec![Glimpse::default(); self.members.len()],
            parts: Vec::new(),
            left: ordered,
            heard: Instant::now(),
        };
        let planned = Duration::from_secs_f64(order.settings.seconds) + LEAD;
        let limit = match order.work {
            Work::Mixed | Work::PutGet { .. } => Some(Instant::now() + planned + OVERTIME_MAX),
            Work::Fill => None,
        };
        let failure = gathering.gather(self, &news, limit, stop, watch);
        if let Some(why) = failure {
            return Err(why);
        }
        merge(gathering.parts).ok_or_else(|| "no agent is left".to_owned())
    }

    fn check(
        &mut self,
        order: &CheckOrder,
        stop: &Stop,
        tell: &mut dyn FnMut(Checked),
    ) -> Result<(), String> {
        self.check_by_one(order, stop, tell)
    }

    fn forget(&mut self) {
        let present = self.present();
        self.tell(&present, &ToAgent::Forget);
    }

    fn faults(&mut self) -> Vec<String> {
        std::mem::take(&mut self.faults)
    }

    fn remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    fn losses(&self) -> Vec<String> {
        self.losses.clone()
    }
}

/// The news of a phase, as they come in.
struct Gathering {
    glimpses: Vec<Glimpse>,
    parts: Vec<(String, Phase)>,
    left: Vec<usize>,
    heard: Instant,
}

impl Gathering {
    /// Until every agent has ended or is lost; why the phase failed, if an agent says so.
    fn gather(
        &mut self,
        crew: &mut Crew,
        news: &Receiver<(usize, io::Result<FromAgent>)>,
        limit: Option<Instant>,
        stop: &Stop,
        watch: &mut dyn FnMut(&Glimpse),
    ) -> Option<String> {
        let (mut failure, mut is_stopping) = (None, false);
        while !self.left.is_empty() {
            if stop.is_set() && !std::mem::replace(&mut is_stopping, true) {
                crew.tell(&self.left, &ToAgent::Stop);
            }
            match news.recv_timeout(LOOK) {
                Ok((place, message)) => {
                    self.heard = Instant::now();
                    match message {
                        Ok(FromAgent::Glimpse { glimpse }) => {
                            self.glimpses[place] = glimpse;
                            watch(&sum_of(&self.glimpses));
                            continue;
                        }
                        Ok(FromAgent::Done { phase, faults, remarks }) => {
                            let name = crew.members[place].name.clone();
                            let named = |text: String| format!("agent {name}: {text}");
                            crew.faults.extend(faults.into_iter().map(named));
                            crew.remarks.extend(remarks.into_iter().map(named));
                            self.parts.push((name, *phase));
                        }
                        Ok(FromAgent::Failed { why }) => {
                            failure = Some(format!("agent {}: {why}", crew.members[place].name));
                        }
                        Ok(other) => crew.lose(place, &format!("it said {other:?} in the middle of a phase")),
                        Err(error) => crew.lose(place, &error.to_string()),
                    }
                    self.left.retain(|&left| left != place);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let is_late = limit.is_some_and(|limit| limit < Instant::now());
                    if is_late || SILENCE_MAX < self.heard.elapsed() && limit.is_none() {
                        self.give_up(crew);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => self.give_up(crew),
            }
        }
        failure
    }

    fn give_up(&mut self, crew: &mut Crew) {
        for place in std::mem::take(&mut self.left) {
            crew.lose(place, "it did not say in time how its phase ended");
            // Ends the thread that listens, and the load.
            let _ = crew.members[place].stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Hands on what an agent says until its phase or its check is over.
pub(super) fn hear(place: usize, mut stream: TcpStream, sender: &Sender<(usize, io::Result<FromAgent>)>) {
    loop {
        let message = receive::<FromAgent>(&mut stream);
        let is_last = !matches!(message, Ok(FromAgent::Glimpse { .. } | FromAgent::Stage { .. }));
        if sender.send((place, message)).is_err() || is_last {
            return;
        }
    }
}

/// All agents' glimpses as one.
fn sum_of(glimpses: &[Glimpse]) -> Glimpse {
    let mut sum = Glimpse::default();
    for glimpse in glimpses {
        sum.at_seconds = sum.at_seconds.max(glimpse.at_seconds);
        sum.left_seconds = sum.left_seconds.into_iter().chain(glimpse.left_seconds).reduce(f64::max);
        sum.offered += glimpse.offered;
        sum.answered += glimpse.answered;
        sum.good += glimpse.good;
        sum.wrong += glimpse.wrong;
        sum.timed_out += glimpse.timed_out;
        sum.in_flight += glimpse.in_flight;
        sum.answered_per_second += glimpse.answered_per_second;
        // Percentiles do not add up; the worst says what there is to see.
        sum.p50_ms = sum.p50_ms.max(glimpse.p50_ms);
        sum.p99_ms = sum.p99_ms.max(glimpse.p99_ms);
    }
    sum
}

fn connect(name: &str) -> Result<TcpStream, String> {
    let wrong = |error: &dyn std::fmt::Display| {
        format!("agent {name}: {error}; is `violet-testclient agent --listen {name}` running there?")
    };
    let mut addresses = name
        .to_socket_addrs()
        .map_err(|error| format!("--agents {name}: {error}; agents are named HOST:PORT"))?;
    let address = addresses.next().ok_or_else(|| format!("--agents {name}: there is no such host"))?;
    let stream = TcpStream::connect_timeout(&address, GREETING_MAX).map_err(|error| wrong(&error))?;
    let prepare = || {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GREETING_MAX))?;
        stream.set_write_timeout(Some(GREETING_MAX))
    };
    prepare().map_err(|error| wrong(&error))?;
    Ok(stream)
}

fn greet(name: &str, stream: &mut TcpStream, token: Option<&str>) -> Result<Machine, String> {
    let hello = ToAgent::Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        token: token.map(str::to_owned),
    };
    let answer = send(stream, &hello).and_then(|()| receive::<FromAgent>(stream));
    match answer {
        Ok(FromAgent::Welcome { protocol: PROTOCOL, machine, .. }) => Ok(machine),
        Ok(FromAgent::Welcome { protocol, version, .. }) => Err(format!(
            "agent {name} speaks version {protocol} of the agents' protocol (program {version}), this program {PROTOCOL}"
        )),
        Ok(FromAgent::Refused { why }) => Err(format!("agent {name} refuses: {why}")),
        Ok(other) => Err(format!("agent {name} answers a greeting with {other:?}")),
        Err(error) => Err(format!("agent {name} does not greet as an agent does: {error}")),
    }
}

fn read_clock(stream: &mut TcpStream) -> io::Result<Offset> {
    let mut trips = Vec::with_capacity(QUESTIONS);
    for _ in 0..QUESTIONS {
        let asked = clock::unix_nanos();
        send(stream, &ToAgent::Clock)?;
        let FromAgent::Clock { unix_nanos: theirs } = receive(stream)? else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it answers something else"));
        };
        trips.push(RoundTrip { asked, theirs, answered: clock::unix_nanos() });
    }
    Ok(clock::best(&trips).expect("there was a question at least"))
}

#[cfg(test)]
mod tests {
    use super::super::share::tests::order;
    use super::*;
    use crate::plan::fake;
    use std::net::TcpListener;

    /// An agent that greets, tells the time, and then does this with the first order.
    fn agent(then: impl Fn(&mut TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello: ToAgent = receive(&mut stream).unwrap();
            assert!(matches!(hello, ToAgent::Hello { protocol: PROTOCOL, .. }));
            let welcome = FromAgent::Welcome {
                protocol: PROTOCOL,
                version: String::new(),
                machine: Machine { host: "there".to_owned(), ..Machine::default() },
            };
            send(&mut stream, &welcome).unwrap();
            while let Ok(message) = receive::<ToAgent>(&mut stream) {
                match message {
                    // An hour ahead.
                    ToAgent::Clock => {
                        let unix_nanos = clock::unix_nanos() + 3_600_000_000_000;
                        send(&mut stream, &FromAgent::Clock { unix_nanos }).unwrap();
                    }
                    ToAgent::Run { at_unix_nanos, .. } => {
                        let wait = at_unix_nanos - clock::unix_nanos();
                        assert!((3_600..3_610).contains(&(wait / 1_000_000_000)), "{wait}");
                        then(&mut stream);
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        name
    }

    #[test]
    fn phases_are_merged_and_a_lost_agent_is_named() {
        let good = agent(|stream| {
            send(stream, &FromAgent::Glimpse { glimpse: Glimpse { offered: 7, ..Glimpse::default() } })
                .unwrap();
            send(
                stream,
                &FromAgent::Done {
                    phase: Box::new(fake::phase(30.0, 30, 0)),
                    faults: Vec::new(),
                    remarks: Vec::new(),
                },
            )
            .unwrap();
        });
        let bad = agent(|stream| stream.shutdown(std::net::Shutdown::Both).unwrap());
        let Met { mut crew, machines, warnings } = Crew::meet(&[good, bad.clone()], None).unwrap();
        assert_eq!(machines.len(), 2);
        assert!(warnings.len() == 2 && warnings[0].contains("its clock is +3"), "{warnings:?}");
        let mut offered = 0;
        let stop = Stop::default();
        let phase = crew.load(&order(None, 100), &stop, &mut |glimpse| offered = glimpse.offered).unwrap();
        assert_eq!((phase.counts.good, offered), (30, 7));
        let losses = crew.losses();
        assert!(losses.len() == 1 && losses[0].starts_with(&format!("agent {bad} was lost")), "{losses:?}");
        // The other goes on alone.
        assert_eq!(crew.load(&order(None, 100), &stop, &mut |_| {}).unwrap().counts.good, 30);
    }

    #[test]
    fn what_is_no_agent_is_named_with_what_would_be_right() {
        let check = |name: &str, expected: &str| {
            let message = Crew::meet(&[name.to_owned()], None).err().unwrap();
            assert!(message.contains(expected), "{message}");
        };
        check("nowhere", "agents are named HOST:PORT");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        check(&address, "is `violet-testclient agent --listen");
    }
}
