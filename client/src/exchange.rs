//! One logical request with its retries, as a state machine without a socket and without a clock.
//!
//! The caller hands in `now` (time since any fixed start) and obeys [`Step`]: send the datagram, wait
//! for a datagram or a moment, or stop. All retries carry the same id and the same bytes, so a server
//! that keeps its replies executes the request once. A datagram that does not answer this request is
//! ignored and does not shorten the wait.
//!
//! An overloaded server may name a time to wait. The exchange then pauses and starts over with a *new*
//! id, as the clients of 2019 do: the old one is by then answered ("overloaded") in the server's reply
//! cache. The new id cannot be drawn here, it is derived from the old one (see [`successor`]).
//!
//! Deliberately not here: choosing a server, and sending; see [`crate::blocking`].

use std::time::Duration;

use crate::wire::{self, Format, MESSAGE_ID_BYTES, MessageId, Request, Response, Status};

/// How patient a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How long to wait for a reply after each attempt. As many attempts as waits.
    pub waits: Vec<Duration>,
    /// The longest pause that an overloaded server can impose; a longer one is cut to this.
    pub overload_wait_max: Duration,
    /// How often to start over because of overload before giving up.
    pub overload_rounds_max: u32,
}

impl RetryPolicy {
    /// The longest pause that the named policies let a server impose. Real servers ask for 2.5 s.
    pub const OVERLOAD_WAIT_MAX: Duration = Duration::from_secs(5);
    /// How often the named policies start over because of overload.
    pub const OVERLOAD_ROUNDS_MAX: u32 = 10;

    /// PUT, GET and REMOVE of the clients of 2016: 3 attempts in 3.6 s.
    #[must_use]
    pub fn course_2016() -> Self {
        Self::of_millis(&[600, 1000, 2000])
    }

    /// Everything of the clients of 2019: 5 attempts in 6.45 s.
    #[must_use]
    pub fn course_2019() -> Self {
        Self::of_millis(&[150, 450, 1350, 2500, 2000])
    }

    /// The client of 2021: 4 attempts in 3.8 s.
    #[must_use]
    pub fn course_2021() -> Self {
        Self::of_millis(&[400, 1000, 800, 1600])
    }

    /// One attempt, no retry, and an overloaded server is not asked again.
    #[must_use]
    pub fn once(wait: Duration) -> Self {
        Self { waits: vec![wait], overload_wait_max: Self::OVERLOAD_WAIT_MAX, overload_rounds_max: 0 }
    }

    /// The same attempts, but all waits together last exactly this long: late attempts are left out or
    /// cut short, or the last one is made longer. Pauses for overload come on top.
    #[must_use]
    pub fn lasting(mut self, total: Duration) -> Self {
        let mut left = total;
        let mut waits = Vec::with_capacity(self.waits.len());
        for wait in self.waits {
            if left.is_zero() {
                break;
            }
            waits.push(wait.min(left));
            left = left.saturating_sub(wait);
        }
        match waits.last_mut() {
            Some(last) => *last += left,
            None => waits.push(left),
        }
        self.waits = waits;
        self
    }

    fn of_millis(waits: &[u64]) -> Self {
        Self {
            waits: waits.iter().copied().map(Duration::from_millis).collect(),
            overload_wait_max: Self::OVERLOAD_WAIT_MAX,
            overload_rounds_max: Self::OVERLOAD_ROUNDS_MAX,
        }
    }
}

impl Default for RetryPolicy {
    /// [`RetryPolicy::course_2019`]: the quickest first retry, and the longest patience in all.
    fn default() -> Self {
        Self::course_2019()
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send [`Exchange::datagram`] now, then poll again.
    Send,
    /// Nothing to do before this time, unless a datagram comes.
    WaitUntil(Duration),
    /// Finished; see [`Exchange::outcome`].
    Done,
}

/// What a received datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A reply to this request. Poll for what follows from it.
    Accepted,
    /// Not a reply to this request: another id, a wrong checksum, or no reply at all. Ignored.
    Foreign,
    /// Another copy of a reply that was already acted upon. Ignored.
    Late,
}

/// A reply that outlives its datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the operation ended.
    pub status: Status,
    /// The value, where the reply has one. Some writers leave an empty value out.
    pub value: Option<Vec<u8>>,
    /// The version stored with the value; 0 where the reply has none.
    pub version: i32,
    /// The process id, for GETPID.
    pub pid: Option<i32>,
    /// The number of live members, for GETMEMBERSHIPCOUNT.
    pub membership_count: Option<i32>,
    /// How long an overloaded server asks to wait, in milliseconds.
    pub overload_wait_ms: Option<i32>,
}

impl From<&Response<'_>> for Reply {
    fn from(response: &Response<'_>) -> Self {
        Self {
            status: response.status,
            value: response.value.map(|value| value.bytes.to_vec()),
            version: response.value.map_or(0, |value| value.version),
            pid: response.pid,
            membership_count: response.membership_count,
            overload_wait_ms: response.overload_wait_ms,
        }
    }
}

impl Reply {
    /// The value as text, where the reply has one; what is not UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        self.value.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

/// How an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered. An overload reply that names no time to wait is an answer too.
    Answered(Reply),
    /// No attempt got a reply. Whether the request was executed is not known.
    TimedOut,
    /// Every server asked was overloaded, more often than the policy allows, or one said to give up.
    Overloaded,
}

#[derive(Clone, Debug)]
enum State {
    /// The attempt with this index in the policy's waits is to be sent.
    Sending {
        attempt: usize,
    },
    /// It was sent, and its reply is awaited.
    Waiting {
        attempt: usize,
        deadline: Duration,
    },
    /// The server is overloaded and asked for quiet.
    Pausing {
        until: Duration,
    },
    Done(Outcome),
}

/// One logical request and its retries.
#[derive(Clone, Debug)]
pub struct Exchange {
    format: Format,
    command: u32,
    id: MessageId,
    datagram: Vec<u8>,
    policy: RetryPolicy,
    attempts: u32,
    overload_rounds: u32,
    state: State,
}

impl Exchange {
    /// Prepares a request; nothing happens before the first [`Self::poll`]. A policy without waits
    /// times out at once.
    ///
    /// # Panics
    /// When a raw request's value is longer than any datagram.
    #[must_use]
    pub fn new(request: &Request<'_>, policy: &RetryPolicy) -> Self {
        let mut datagram = Vec::new();
        wire::encode_request(request, &mut datagram);
        Self {
            format: request.format,
            command: request.operation.command(),
            id: request.id,
            datagram,
            policy: policy.clone(),
            attempts: 0,
            overload_rounds: 0,
            state: State::Sending { attempt: 0 },
        }
    }

    /// What to do at this time. [`Step::Send`] is returned once per attempt.
    pub fn poll(&mut self, now: Duration) -> Step {
        match self.state {
            State::Sending { attempt } => self.send_attempt(attempt, now),
            State::Waiting { attempt, deadline } if deadline <= now => self.send_attempt(attempt + 1, now),
            State::Waiting { deadline, .. } => Step::WaitUntil(deadline),
            State::Pausing { until } if until <= now => {
                self.id = successor(self.id);
                wire::replace_id(self.format, &mut self.datagram, self.id);
                self.send_attempt(0, now)
            }
            State::Pausing { until } => Step::WaitUntil(until),
            State::Done(_) => Step::Done,
        }
    }

    fn send_attempt(&mut self, attempt: usize, now: Duration) -> Step {
        let Some(&wait) = self.policy.waits.get(attempt) else {
            self.state = State::Done(Outcome::TimedOut);
            return Step::Done;
        };
        self.state = State::Waiting { attempt, deadline: now.saturating_add(wait) };
        self.attempts += 1;
        Step::Send
    }

    /// The bytes to send: the same for each retry, until overload makes the exchange start over.
    #[must_use]
    pub fn datagram(&self) -> &[u8] {
        &self.datagram
    }

    /// The id that the next reply must carry.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Takes a datagram that arrived. The sender does not matter: any member may answer.
    pub fn on_datagram(&mut self, now: Duration, bytes: &[u8]) -> Verdict {
        let Ok(response) = wire::decode_response(self.format, self.command, bytes) else {
            return Verdict::Foreign;
        };
        if response.id != self.id {
            return Verdict::Foreign;
        }
        let overload = overload_wait_ms(&response);
        match (&self.state, overload) {
            // Nothing was sent with this id, so nothing can answer it.
            (State::Sending { .. }, _) => Verdict::Foreign,
            (State::Done(_), _) | (State::Pausing { .. }, Some(_)) => Verdict::Late,
            (State::Waiting { .. }, Some(wait_ms)) => {
                self.state = self.pause(now, wait_ms);
                Verdict::Accepted
            }
            // A retry may have been executed although an earlier attempt was refused.
            (State::Waiting { .. } | State::Pausing { .. }, None) => {
                self.state = State::Done(Outcome::Answered(Reply::from(&response)));
                Verdict::Accepted
            }
        }
    }

    fn pause(&mut self, now: Duration, wait_ms: i32) -> State {
        let Ok(wait_ms) = u64::try_from(wait_ms) else {
            return State::Done(Outcome::Overloaded);
        };
        if self.policy.overload_rounds_max <= self.overload_rounds {
            return State::Done(Outcome::Overloaded);
        }
        self.overload_rounds += 1;
        let wait = Duration::from_millis(wait_ms).min(self.policy.overload_wait_max);
        State::Pausing { until: now.saturating_add(wait) }
    }

    /// How many datagrams were sent, in all rounds together.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How it ended; `None` while it runs.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match &self.state {
            State::Done(outcome) => Some(outcome.clone()),
            State::Sending { .. } | State::Waiting { .. } | State::Pausing { .. } => None,
        }
    }
}

/// The time to wait of a reply that says "overloaded, come back": only the envelope can say it.
fn overload_wait_ms(response: &Response<'_>) -> Option<i32> {
    match response.status {
        Status::Overload => response.overload_wait_ms,
        Status::Success
        | Status::NoSuchKey
        | Status::OutOfSpace
        | Status::InternalFailure
        | Status::UnknownCommand
        | Status::InvalidKey
        | Status::InvalidValue
        | Status::Malformed
        | Status::Other(_) => None,
    }
}

/// The id that follows another one when an overloaded server makes a request start over.
///
/// Derived, not drawn, so that an exchange needs no randomness: the two halves go through a Feistel
/// network whose round function is the finalizer of SplitMix64. That is a bijection, so requests with
/// different ids never get the same successor, and it scatters, so a successor does not meet an id
/// that a neighbour counted up to.
#[must_use]
pub fn successor(id: MessageId) -> MessageId {
    const ROUNDS: u64 = 4;
    let id = u128::from_be_bytes(id.0);
    let (mut left, mut right) = ((id >> 64) as u64, id as u64);
    for round in 1..=ROUNDS {
        (left, right) = (right, left ^ scramble(right.wrapping_add(round)));
    }
    let mut bytes = [0; MESSAGE_ID_BYTES];
    bytes[..8].copy_from_slice(&left.to_be_bytes());
    bytes[8..].copy_from_slice(&right.to_be_bytes());
    MessageId(bytes)
}

/// One step of SplitMix64: 64 bits in, 64 scattered bits out, no two inputs alike.
pub(crate) fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Accept, Key, Operation, Value};
    use expect_test::{Expect, expect};
    use std::fmt::Write as _;

    const FIRST_ID: MessageId = MessageId([0x31; 16]);

    /// Plays a script against one exchange and compares what happened.
    ///
    /// The script is `time event` pairs in milliseconds, separated by `;`. Events: `poll`, `reply STATUS`
    /// (with the id of the last datagram), `overload WAIT`, `foreign`, `garbage`, `first-id` (an answer to
    /// the id of the first round).
    fn check(format: Format, policy: &RetryPolicy, script: &str, expected: Expect) {
        let mut seen: Vec<Vec<u8>> = Vec::new();
        let mut exchange = Exchange::new(&put(format), policy);
        let mut log = String::new();
        for line in script.split(';').map(str::trim) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let now = Duration::from_millis(words[0].parse().unwrap());
            let happened = match words[1] {
                "poll" => poll(&mut exchange, now, &mut seen),
                event => {
                    format!("{:?}", exchange.on_datagram(now, &reply(&exchange, format, event, words.get(2))))
                }
            };
            writeln!(log, "{line}: {happened}").unwrap();
        }
        let outcome = exchange.outcome().map_or("running".into(), |outcome| match outcome {
            Outcome::Answered(reply) => format!("answered {:?}", reply.status),
            other => format!("{other:?}"),
        });
        writeln!(log, "{} attempts, {outcome}", exchange.attempts()).unwrap();
        expected.assert_eq(&log);
    }

    fn put(format: Format) -> Request<'static> {
        let key = Key::parse(b"key").unwrap();
        let value = Value { bytes: &[7; 300], version: 0 };
        Request { format, id: FIRST_ID, operation: Operation::Put { key, value } }
    }

    /// Names each new datagram `a`, `b`, ... so that a script shows which retries are identical.
    fn poll(exchange: &mut Exchange, now: Duration, seen: &mut Vec<Vec<u8>>) -> String {
        match exchange.poll(now) {
            Step::Send => {
                let bytes = exchange.datagram().to_vec();
                let place = seen.iter().position(|old| *old == bytes).unwrap_or_else(|| {
                    seen.push(bytes);
                    seen.len() - 1
                });
                format!("send {}", char::from(b'a' + place as u8))
            }
            Step::WaitUntil(time) => format!("wait until {}", time.as_millis()),
            Step::Done => "done".into(),
        }
    }

    fn reply(exchange: &Exchange, format: Format, event: &str, argument: Option<&&str>) -> Vec<u8> {
        let mut id = exchange.id();
        let mut wait = None;
        let status = match event {
            "overload" => {
                wait = argument.map(|wait| wait.parse().unwrap());
                Status::Overload
            }
            "foreign" => {
                id.0[15] ^= 1;
                Status::Success
            }
            "first-id" => {
                id = FIRST_ID;
                Status::Success
            }
            "damaged" | "garbage" => Status::Success,
            "reply" => Status::from_code(argument.unwrap().parse().unwrap(), format),
            other => panic!("no event {other}"),
        };
        let mut bytes = Vec::new();
        let response = Response { overload_wait_ms: wait, ..Response::of_status(id, status) };
        wire::encode_response(format, &response, &mut bytes);
        match event {
            "damaged" => bytes[21] ^= 1,
            "garbage" => bytes.truncate(9),
            _ => {}
        }
        bytes
    }

    #[test]
    fn all_retries_are_the_same_bytes_and_then_it_times_out() {
        for format in [Format::Raw, Format::Protobuf] {
            check(
                format,
                &RetryPolicy::course_2016(),
                "0 poll; 0 poll; 599 poll; 600 poll; 1599 poll; 1600 poll; 3599 poll; 3600 poll; 9999 poll",
                expect![[r#"
                    0 poll: send a
                    0 poll: wait until 600
                    599 poll: wait until 600
                    600 poll: send a
                    1599 poll: wait until 1600
                    1600 poll: send a
                    3599 poll: wait until 3600
                    3600 poll: done
                    9999 poll: done
                    3 attempts, TimedOut
                "#]],
            );
        }
    }

    #[test]
    fn a_late_caller_gets_one_attempt_at_a_time() {
        check(
            Format::Raw,
            &RetryPolicy::course_2016(),
            "0 poll; 5000 poll; 5000 poll; 5500 reply 0; 5500 poll",
            expect![[r#"
                0 poll: send a
                5000 poll: send a
                5000 poll: wait until 6000
                5500 reply 0: Accepted
                5500 poll: done
                2 attempts, answered Success
            "#]],
        );
    }

    #[test]
    fn foreign_datagrams_do_not_end_an_attempt() {
        check(
            Format::Protobuf,
            &RetryPolicy::course_2021(),
            "0 poll; 1 foreign; 2 garbage; 3 damaged; 4 poll; 400 poll; 401 foreign; 402 reply 1; 403 reply 1; 404 foreign",
            expect![[r#"
                0 poll: send a
                1 foreign: Foreign
                2 garbage: Foreign
                3 damaged: Foreign
                4 poll: wait until 400
                400 poll: send a
                401 foreign: Foreign
                402 reply 1: Accepted
                403 reply 1: Late
                404 foreign: Foreign
                2 attempts, answered NoSuchKey
            "#]],
        );
    }

    #[test]
    fn nothing_answers_what_was_not_sent() {
        check(
            Format::Raw,
            &RetryPolicy::default(),
            "0 reply 0; 0 poll",
            expect![[r#"
                0 reply 0: Foreign
                0 poll: send a
                1 attempts, running
            "#]],
        );
    }

    #[test]
    fn overload_pauses_and_starts_over_with_a_new_id() {
        check(
            Format::Protobuf,
            &RetryPolicy::course_2019(),
            "0 poll; 10 overload 2500; 20 overload 2500; 2509 poll; 2510 poll; 2660 poll; 2661 first-id; \
             2662 overload 60000; 7661 poll; 7662 poll; 7663 reply 0; 7663 poll",
            expect![[r#"
                0 poll: send a
                10 overload 2500: Accepted
                20 overload 2500: Late
                2509 poll: wait until 2510
                2510 poll: send b
                2660 poll: send b
                2661 first-id: Foreign
                2662 overload 60000: Accepted
                7661 poll: wait until 7662
                7662 poll: send c
                7663 reply 0: Accepted
                7663 poll: done
                4 attempts, answered Success
            "#]],
        );
    }

    #[test]
    fn an_answer_during_the_pause_counts() {
        check(
            Format::Protobuf,
            &RetryPolicy::course_2019(),
            "0 poll; 10 overload 2500; 20 reply 0; 20 poll",
            expect![[r#"
                0 poll: send a
                10 overload 2500: Accepted
                20 reply 0: Accepted
                20 poll: done
                1 attempts, answered Success
            "#]],
        );
    }

    #[test]
    fn a_negative_wait_gives_up_at_once() {
        check(
            Format::Protobuf,
            &RetryPolicy::course_2019(),
            "0 poll; 10 overload -1; 10 poll",
            expect![[r#"
                0 poll: send a
                10 overload -1: Accepted
                10 poll: done
                1 attempts, Overloaded
            "#]],
        );
    }

    #[test]
    fn overload_has_an_end() {
        let policy = RetryPolicy { overload_rounds_max: 2, ..RetryPolicy::course_2019() };
        check(
            Format::Protobuf,
            &policy,
            "0 poll; 1 overload 0; 1 poll; 2 overload 0; 2 poll; 3 overload 0; 3 poll",
            expect![[r#"
                0 poll: send a
                1 overload 0: Accepted
                1 poll: send b
                2 overload 0: Accepted
                2 poll: send c
                3 overload 0: Accepted
                3 poll: done
                3 attempts, Overloaded
            "#]],
        );
    }

    #[test]
    fn an_overload_reply_without_a_wait_is_an_answer() {
        for format in [Format::Raw, Format::Protobuf] {
            check(
                format,
                &RetryPolicy::course_2019(),
                "0 poll; 10 reply 3; 10 poll",
                expect![[r#"
                    0 poll: send a
                    10 reply 3: Accepted
                    10 poll: done
                    1 attempts, answered Overload
                "#]],
            );
        }
    }

    #[test]
    fn a_datagram_with_a_new_id_is_the_same_request() {
        for format in [Format::Raw, Format::Protobuf] {
            let request = put(format);
            let mut datagram = Vec::new();
            wire::encode_request(&request, &mut datagram);
            let id = successor(FIRST_ID);
            wire::replace_id(format, &mut datagram, id);
            let decoded = wire::decode_request(&datagram, Accept::Auto).unwrap();
            assert_eq!(decoded.id, id);
            let mut again = Vec::new();
            wire::encode_request(&Request { id, ..request }, &mut again);
            assert_eq!(datagram, again);
        }
    }

    #[test]
    fn successors_scatter() {
        let mut ids = std::collections::BTreeSet::new();
        for number in 0..1000u128 {
            let mut id = MessageId(number.to_be_bytes());
            for _ in 0..10 {
                assert!(ids.insert(id), "{id:?} came twice");
                id = successor(id);
            }
        }
    }

    #[test]
    fn a_policy_can_be_made_to_last() {
        let millis = |total| {
            let policy = RetryPolicy::course_2016().lasting(Duration::from_millis(total));
            policy.waits.iter().map(Duration::as_millis).collect::<Vec<_>>()
        };
        assert_eq!(millis(100), [100]);
        assert_eq!(millis(600), [600]);
        assert_eq!(millis(1700), [600, 1000, 100]);
        assert_eq!(millis(3600), [600, 1000, 2000]);
        assert_eq!(millis(10_000), [600, 1000, 8400]);
        assert_eq!(millis(0), [0]);
    }
}
