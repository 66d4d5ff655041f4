//! `generator`: the load engine of this program beside the bare generator of `bench`, both on one processor, both asking
//! the same minimal store on another.
//!
//! Rounds are interleaved, and the ratio is taken within each. The bare generator keeps no account of keys, never sends
//! again, and checks that a value is one of its key; the engine does all that a `load` does. Both keep as many requests
//! under way, half of them GETs.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use violet_client::Format;

use super::codec::{Codec, Dialect};
use super::contents::Contents as BareContents;
use super::generator::{Generator, Load, Pace};
use super::load::{Mix, Stream};
use super::probe;
use super::processors::{self, Processors};
use crate::load::PhasePlan;
use crate::load::phase::run_phase_counted;
use crate::names::{KEY_BYTES_MIN, KeyNames, Mark};
use crate::sockets::Packing;
use crate::values::{Contents, Random, Sizes};
use crate::workload::{Keys, Target};

/// The engine must reach this share of the bare generator's rate.
const SHARE_MIN: f64 = 0.8;
/// Keys of each.
const KEYS: u32 = 100_000;
/// How long the store has to answer its first request.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Options of `generator`.
#[derive(Clone, Debug, Args)]
pub struct GeneratorArguments {
    /// How often each is measured.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// How long each time, in milliseconds.
    #[arg(long, default_value_t = 850, value_name = "MS", value_parser = clap::value_parser!(u64).range(50..=600_000))]
    pub sample_ms: u64,
    /// Requests under way; logical clients of the engine.
    #[arg(long, default_value_t = 256, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub clients: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8..=10_000))]
    pub value_bytes: u32,
    /// Port of the store.
    #[arg(long, default_value_t = 28_430)]
    pub port: u16,
}

/// One measurement: good answers a second, and processor time of this thread for each.
#[derive(Clone, Copy, Debug)]
struct Sample {
    per_second: f64,
    cpu_us: f64,
}

/// Measures; whether the engine reaches its share.
///
/// # Errors
/// One sentence about what keeps it from being measured.
pub fn run(arguments: &GeneratorArguments) -> Result<bool, String> {
    let processors = Processors::choose(&[], &[])?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, arguments.port));
    let store = StoreProcess::start(arguments.port)?;
    processors::pin_process(store.child.id(), &processors.server)?;
    // The engine's thread inherits this.
    processors::pin_this_thread(&processors.client)?;
    let contents = BareContents::new(1, arguments.value_bytes as usize);
    let codec = Codec::new(Dialect::Raw, contents, 1);
    await_store(&codec, server)?;
    bare(arguments, &codec, Mix::fill(KEYS), server, None)?;
    let target = Target { servers: vec![server], format: Format::Raw };
    let contents = Contents::new(2, Sizes::Fixed(arguments.value_bytes as usize));
    let names = KeyNames::new(Mark::fresh(), 2, KEY_BYTES_MIN);
    let mut keys = Keys::new(target, KEYS as usize, contents, names, 2, 1)?;
    engine(&PhasePlan::fill(arguments.clients as usize), &mut keys)?;
    let sample = Duration::from_millis(arguments.sample_ms);
    let plan = PhasePlan {
        clients: Some(arguments.clients as usize),
        seconds: sample.as_secs_f64(),
        warm_up: sample.as_secs_f64() / 6.0,
        ..PhasePlan::default()
    };
    say(&format!(
        "store on processors {:?}, generators on {:?}; {} under way, {} B, raw, half GETs",
        processors.server, processors.client, arguments.clients, arguments.value_bytes
    ));
    say(
        "| round | bare/s | CPU us | engine/s | CPU us | ratio | of CPU |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    );
    let mut ratios = Vec::new();
    for round in 1..=arguments.rounds {
        let mix = Mix::Random { keys: KEYS, get_percent: 50 };
        let bare = bare(arguments, &codec, mix, server, Some(sample))?;
        let engine = engine(&plan, &mut keys)?;
        let (ratio, of_cpu) = (engine.per_second / bare.per_second, bare.cpu_us / engine.cpu_us);
        ratios.push(ratio);
        say(&format!(
            "| {round} | {:.0} | {:.2} | {:.0} | {:.2} | {ratio:.2} | {of_cpu:.2} |",
            bare.per_second, bare.cpu_us, engine.per_second, engine.cpu_us
        ));
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let is_reached = SHARE_MIN <= median;
    let verdict = if is_reached { "reached" } else { "missed" };
    say(&format!("median ratio {median:.2}, at least {SHARE_MIN}: {verdict}"));
    Ok(is_reached)
}

fn say(text: &str) {
    // Whoever reads it may have seen enough, as `head` has.
    let _ = writeln!(io::stdout(), "{text}");
}

/// The bare generator, for a while or until its keys are stored.
fn bare(
    arguments: &GeneratorArguments,
    codec: &Codec,
    mix: Mix,
    server: SocketAddr,
    duration: Option<Duration>,
) -> Result<Sample, String> {
    let load = Load {
        server,
        sockets: 4,
        pace: Pace::Closed { window: arguments.clients as usize },
        packing: Packing::Segments,
        seed: 1,
    };
    let failed = |error: io::Error| format!("the bare generator: {error}");
    let mut generator = Generator::new(codec, mix, load).map_err(failed)?;
    let Some(duration) = duration else {
        generator.fill()?;
        return Ok(Sample { per_second: 0.0, cpu_us: 0.0 });
    };
    generator.run(duration / 6).map_err(failed)?;
    generator.tally().begin_measuring();
    let (started, used) = (Instant::now(), probe::run_nanos_of_this_thread());
    generator.run(duration).map_err(failed)?;
    let (seconds, used) = (started.elapsed().as_secs_f64(), probe::run_nanos_of_this_thread() - used);
    let answered = generator.tally().answered.max(1) as f64;
    let sample = Sample { per_second: answered / seconds, cpu_us: used as f64 / 1e3 / answered };
    generator.drain().map_err(failed)?;
    match generator.tally().wrong {
        0 => Ok(sample),
        wrong => Err(format!("{wrong} wrong answers to the bare generator")),
    }
}

/// The load engine.
fn engine(plan: &PhasePlan, keys: &mut Keys) -> Result<Sample, String> {
    let (phase, tally) = run_phase_counted(plan, keys, &mut |_| ControlFlow::Continue(()))?;
    if 0 < phase.counts.wrong {
        return Err(format!("wrong answers to the engine: {}", keys.take_faults().sentences().join("; ")));
    }
    let answers = tally.answers_in_window.max(1) as f64;
    let seconds = phase.window_seconds.max(f64::MIN_POSITIVE);
    Ok(Sample { per_second: answers / seconds, cpu_us: tally.busy.as_secs_f64() * 1e6 / answers })
}

/// The store's process; it ends with this one, or when it is dropped.
struct StoreProcess {
    child: Child,
}

impl StoreProcess {
    fn start(port: u16) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("own program: {error}"))?;
        let mut command = Command::new(own);
        command.args(["bench-store", &port.to_string()]).stdin(Stdio::null());
        command
            .spawn()
            .map(|child| Self { child })
            .map_err(|error| format!("cannot start the store: {error}"))
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks until the store answers.
fn await_store(codec: &Codec, server: SocketAddr) -> Result<(), String> {
    let mut random = Random::new(1);
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(Duration::from_millis(50))).map_err(|error| error.to_string())?;
    let limit = Instant::now() + START_LIMIT;
    while Instant::now() < limit {
        let mut datagram = Vec::new();
        codec.write(super::codec::Kind::Get, 0, random.next(), 0, &mut datagram);
        let asked = socket.send_to(&datagram, server);
        if asked.is_ok() && socket.recv(&mut [0; 2_048]).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("the store on port {} does not answer", server.port()))
}
