//! One sample: a cell, loaded for about a second, with everything that was counted meanwhile.
//!
//! The load is warmed up, measured and drained. The server's processor time is read right at both ends of the
//! measured time; everything else is read around it, since reading takes milliseconds. A sample says of itself
//! when the generator was the limit and when others were busy. Deliberately not here: what samples mean
//! together.

use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::codec::Codec;
use super::contents::Contents;
use super::generator::{Generator, Load, Pace};
use super::load::{Mix, Stream, Tally};
use super::ping::Ping;
use super::plan::{self, Cell, KEYS, SOCKETS, Shape};
use super::probe::{self, Between, Snapshot};
use super::processors::{self, Pinning, Processors};
use super::redis::Pipeline;
use super::subjects::Running;
use crate::machine;
use crate::sockets::Packing;

/// From this share of its processor on, the generator of a closed load is taken for the limit...
const GENERATOR_SHARE_MAX: f64 = 0.95;
/// ... unless the server uses this share of its own.
const SERVER_SHARE_MIN: f64 = 0.95;
/// From this shortfall on, the generator of an open load did not keep up.
const SENT_SHARE_MIN: f64 = 0.98;
/// Cores that others may use before a sample is marked.
pub const OTHERS_CORES_MAX: f64 = 0.25;

/// What was seen of one cell in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The cell.
    pub cell: String,
    /// The round, from 1.
    pub round: usize,
    /// Seconds from the start of the run.
    pub at_seconds: f64,
    /// Measured seconds.
    pub seconds: f64,
    /// Requests a second that an open load offered.
    pub offered_per_second: Option<f64>,
    /// Requests a second that were sent.
    pub sent_per_second: f64,
    /// Right answers a second.
    pub answered_per_second: f64,
    /// Percentiles of the latency of right answers.
    pub latency_us: Latency,
    /// The generator's own lateness, 99th percentile; open loads.
    pub lateness_p99_us: Option<f64>,
    /// Processor time of the server for each right answer.
    pub server_cpu_us_per_request: f64,
    /// Cores that the server used.
    pub server_cores: f64,
    /// Share of a processor that the generator used; of what an open load had no use for, nothing counts.
    pub generator_share: f64,
    /// Whether the generator, not the server, was the limit.
    pub is_generator_limited: bool,
    /// Requests that were never answered.
    pub lost: u64,
    /// Answers with a wrong status, length or value.
    pub wrong: u64,
    /// Answers that said "overloaded".
    pub refused: u64,
    /// Late or doubled datagrams.
    pub stray: u64,
    /// Datagrams that the server's sockets dropped.
    pub server_drops: u64,
    /// Of the generator's sockets.
    pub client_drops: u64,
    /// Of all sockets of the machine, for want of buffer.
    pub receive_buffer_errors: u64,
    /// Cores that everybody else used.
    pub others_cores: f64,
    /// Share of the processors' time that the hypervisor took.
    pub steal_share: f64,
    /// The one-minute load average.
    pub load_average: Option<f64>,
    /// Whether others used more than [`OTHERS_CORES_MAX`].
    pub is_disturbed: bool,
    /// The generator's smallest receive buffer.
    pub client_receive_buffer_bytes: Option<usize>,
}

/// Percentiles in microseconds; of an empty sample all are zero.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// Of a hundred, the slowest but one.
    pub p99: f64,
    /// Of a thousand.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

impl Latency {
    fn of(tally: &Tally) -> Self {
        let at = |quantile| tally.latency.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: tally.latency.max() as f64 / 1e3 }
    }
}

/// How long the parts of a sample take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before counting starts.
    pub warm_up: Duration,
    /// Counted.
    pub measured: Duration,
}

/// What all samples of a run share.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Who runs where.
    pub processors: Processors,
    /// The run's seed.
    pub seed: u64,
    /// How long a sample takes.
    pub times: Times,
    /// When the run began.
    pub started: Instant,
    /// Number of the next load; makes ids and draws differ.
    pub loads: u32,
}

impl Bench {
    /// Puts every key into a server.
    ///
    /// # Errors
    /// One sentence that names the server.
    pub fn fill(&mut self, server: &Running, cell: &Cell) -> Result<(), String> {
        let contents = Contents::new(self.seed, cell.value_bytes);
        let mix = Mix::fill(KEYS);
        let window = plan::window(cell.value_bytes, true);
        self.loads += 1;
        let filled = match cell.target.dialect {
            Some(dialect) => {
                let codec = Codec::new(dialect, contents, self.loads);
                let pace = Pace::Closed { window };
                let load = self.load(server, pace, Packing::Segments);
                let generator = Generator::new(&codec, mix, load).map_err(|error| error.to_string());
                generator.and_then(|mut generator| generator.fill())
            }
            None => {
                let pipeline = Pipeline::new(contents, mix, server.address, SOCKETS, window, self.seed);
                pipeline.map_err(|error| error.to_string()).and_then(|mut pipeline| pipeline.fill())
            }
        };
        filled.map_err(|error| format!("{}: {error}", server.subject.name()))
    }

    fn load(&self, server: &Running, pace: Pace, packing: Packing) -> Load {
        let window = match pace {
            Pace::Closed { window } => window,
            Pace::Open { .. } => SOCKETS,
        };
        let sockets = SOCKETS.min(window);
        Load { server: server.address, sockets, pace, packing, seed: self.draws() }
    }

    /// Takes a sample. `rate` is what saturates the server, for open loads.
    ///
    /// # Errors
    /// One sentence that names the cell.
    pub fn sample(
        &mut self,
        server: &Running,
        cell: &Cell,
        round: usize,
        rate: Option<f64>,
    ) -> Result<Sample, String> {
        let named = |error: String| format!("{}: {error}", cell.id());
        processors::pin_process(server.pid, self.processors.of_server(cell.pinning)).map_err(named)?;
        processors::pin_this_thread(self.processors.of_client(cell.pinning)).map_err(named)?;
        self.loads += 1;
        let offered = match cell.shape {
            Shape::Open { share } => {
                Some(share * rate.ok_or_else(|| named("its rate is not known".to_owned()))?)
            }
            Shape::Closed { .. } | Shape::Ping => None,
        };
        let contents = Contents::new(self.seed, cell.value_bytes);
        let codec = cell.target.dialect.map(|dialect| Codec::new(dialect, contents.clone(), self.loads));
        let stream = match &codec {
            Some(codec) => self.datagrams(codec, server, cell, offered),
            None => self.pipeline(contents, server, cell),
        };
        let mut stream = stream.map_err(|error| named(error.to_string()))?;
        let (measured, between) =
            self.run(stream.as_mut(), server).map_err(|error| named(error.to_string()))?;
        processors::pin_this_thread(&self.processors.all).map_err(named)?;
        Ok(self.judge(cell, round, offered, &measured, &between))
    }

    /// A load over UDP.
    fn datagrams<'a>(
        &self,
        codec: &'a Codec,
        server: &Running,
        cell: &Cell,
        offered: Option<f64>,
    ) -> io::Result<Box<dyn Stream + 'a>> {
        let mix = Mix::Random { keys: KEYS, get_percent: cell.get_percent };
        let pace = match cell.shape {
            Shape::Ping => return Ok(Box::new(Ping::new(codec, mix, server.address, self.draws())?)),
            Shape::Closed { window } => Pace::Closed { window },
            Shape::Open { .. } => Pace::Open { rate: offered.expect("an open shape has a rate") },
        };
        Ok(Box::new(Generator::new(codec, mix, self.load(server, pace, cell.packing))?))
    }

    /// A load over TCP.
    fn pipeline(
        &self,
        contents: Contents,
        server: &Running,
        cell: &Cell,
    ) -> io::Result<Box<dyn Stream + 'static>> {
        let mix = Mix::Random { keys: KEYS, get_percent: cell.get_percent };
        let window = match cell.shape {
            Shape::Closed { window } => window,
            Shape::Open { .. } | Shape::Ping => 1,
        };
        let connections = SOCKETS.min(window);
        Ok(Box::new(Pipeline::new(contents, mix, server.address, connections, window, self.draws())?))
    }

    /// The seed of this load's draws.
    fn draws(&self) -> u64 {
        self.seed.wrapping_add(u64::from(self.loads))
    }

    fn run(&self, stream: &mut dyn Stream, server: &Running) -> io::Result<(Measured, Between)> {
        let before = Snapshot::take();
        stream.run(self.times.warm_up)?;
        stream.tally().begin_measuring();
        let counters = || (probe::run_nanos_of(server.pid), probe::run_nanos_of_this_thread());
        let ((server_before, own_before), begun) = (counters(), Instant::now());
        stream.run(self.times.measured)?;
        let (elapsed, (server_after, own_after)) = (begun.elapsed(), counters());
        // What is counted while draining belongs to requests that were sent before; only losses do here.
        let mut measured = Measured {
            elapsed,
            server_nanos: server_after.saturating_sub(server_before),
            own_nanos: own_after.saturating_sub(own_before),
            tally: stream.tally().clone(),
            whole: Duration::ZERO,
        };
        stream.drain()?;
        let drained = stream.tally();
        (measured.tally.lost, measured.tally.wrong) = (drained.lost, drained.wrong);
        let after = Snapshot::take();
        measured.whole = begun.elapsed() + self.times.warm_up;
        let between = before.until(&after, server.pid, server.address.port(), &stream.local_ports());
        Ok((measured, between))
    }

    fn judge(
        &self,
        cell: &Cell,
        round: usize,
        offered: Option<f64>,
        measured: &Measured,
        between: &Between,
    ) -> Sample {
        let (tally, seconds) = (&measured.tally, measured.elapsed.as_secs_f64());
        let per_second = |count: u64| count as f64 / seconds;
        let server_seconds = measured.server_nanos as f64 / 1e9;
        let others_cores = between.others_nanos as f64 / measured.whole.as_nanos() as f64;
        let generator_share = match offered {
            // An open load spins; only what it had something to do counts.
            Some(_) => 1.0 - tally.idle.as_secs_f64() / seconds,
            None => measured.own_nanos as f64 / 1e9 / seconds,
        };
        let sent_per_second = per_second(tally.sent);
        let is_generator_limited = match offered {
            Some(rate) => sent_per_second < rate * SENT_SHARE_MIN,
            // A generator that is busy beside a server that is busy only answers each reply at once.
            None => {
                let server_share =
                    server_seconds / seconds / self.processors.of_server(cell.pinning).len() as f64;
                cell.pinning == Pinning::Apart
                    && GENERATOR_SHARE_MAX < generator_share
                    && server_share < SERVER_SHARE_MIN
            }
        };
        Sample {
            cell: cell.id(),
            round,
            at_seconds: self.started.elapsed().as_secs_f64(),
            seconds,
            offered_per_second: offered,
            sent_per_second,
            answered_per_second: per_second(tally.answered),
            latency_us: Latency::of(tally),
            lateness_p99_us: offered.map(|_| tally.lateness.value_at_quantile(0.99) as f64 / 1e3),
            server_cpu_us_per_request: server_seconds * 1e6 / tally.answered.max(1) as f64,
            server_cores: server_seconds / seconds,
            generator_share,
            is_generator_limited,
            lost: tally.lost,
            wrong: tally.wrong,
            refused: tally.refused,
            stray: tally.stray,
            server_drops: between.server_drops,
            client_drops: between.client_drops,
            receive_buffer_errors: between.receive_buffer_errors,
            others_cores,
            steal_share: between.steal_share,
            load_average: machine::load_average(),
            is_disturbed: OTHERS_CORES_MAX < others_cores,
            client_receive_buffer_bytes: (tally.receive_buffer_bytes != usize::MAX)
                .then_some(tally.receive_buffer_bytes),
        }
    }
}

/// What was counted in the measured time.
struct Measured {
    elapsed: Duration,
    server_nanos: u64,
    own_nanos: u64,
    tally: Tally,
    /// From before warming up to after draining.
    whole: Duration,
}

#[cfg(test)]
impl Sample {
    /// A quiet sample with this rate, for tests of what is made of samples.
    pub fn example(cell: &str, round: usize, rate: f64) -> Self {
        Self {
            cell: cell.to_owned(),
            round,
            at_seconds: 0.0,
            seconds: 1.0,
            offered_per_second: None,
            sent_per_second: rate,
            answered_per_second: rate,
            latency_us: Latency { p50: 1.0, p99: 1.0, p999: 1.0, max: 1.0 },
            lateness_p99_us: None,
            server_cpu_us_per_request: 1.0,
            server_cores: 1.0,
            generator_share: 0.5,
            is_generator_limited: false,
            lost: 0,
            wrong: 0,
            refused: 0,
            stray: 0,
            server_drops: 0,
            client_drops: 0,
            receive_buffer_errors: 0,
            others_cores: 0.0,
            steal_share: 0.0,
            load_average: None,
            is_disturbed: false,
            client_receive_buffer_bytes: None,
        }
    }
}
