//! Reads `vectors.txt`: datagrams with their meanings, written down independently of the code.
//! The file explains its own format.

use std::collections::BTreeMap;

use violet_client::wire::{
    Accept, Context, DropReason, Format, Key, MessageId, Operation, Rejected, Request, Response, Status,
    Value,
};

/// One block of the file. A line that a block leaves out is empty.
pub struct Vector {
    /// `group/name`.
    pub name: String,
    /// The modes in which the request means what it means.
    pub accept: Vec<Accept>,
    /// What a client sends.
    pub request: Vec<u8>,
    /// What it is read as, as words.
    means: Vec<String>,
    /// Whether our own writer writes the same bytes.
    pub is_request_exact: bool,
    /// What a server answers, if anything.
    pub response: Option<Vec<u8>>,
    /// What it says, as words.
    answers: Vec<String>,
    /// Whether servers send such a response but ours does not.
    pub is_response_read_only: bool,
}

/// All vectors of the file.
pub fn load() -> Vec<Vector> {
    let mut vectors = Vec::new();
    for block in include_str!("../vectors.txt").split("\n\n") {
        let lines = block.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let fields: BTreeMap<&str, &str> =
            lines.map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
        if let Some(name) = fields.get("vector") {
            vectors.push(Vector::parse(name, &fields));
        }
    }
    vectors
}

impl Vector {
    fn parse(name: &str, fields: &BTreeMap<&str, &str>) -> Self {
        let words = |field: &str| -> Vec<String> {
            fields.get(field).copied().unwrap_or("").split_whitespace().map(str::to_owned).collect()
        };
        let flagged = |mut words: Vec<String>, flag: &str| {
            let is_there = words.first().is_some_and(|word| word == flag);
            words.drain(..usize::from(is_there));
            (words, is_there)
        };
        let (means, is_request_exact) = flagged(words("means"), "exactly");
        let (answers, is_response_read_only) = flagged(words("answers"), "read-only");
        let accept = words("accept").into_iter().map(|word| match word.as_str() {
            "auto" => Accept::Auto,
            "raw" => Accept::Raw,
            "protobuf" => Accept::Protobuf,
            other => panic!("{name}: no mode {other}"),
        });
        Self {
            name: name.to_owned(),
            accept: accept.collect(),
            request: bytes(fields.get("request").copied().unwrap_or("")),
            means,
            is_request_exact,
            response: fields.get("response").map(|text| bytes(text)),
            answers,
            is_response_read_only,
        }
    }

    /// Calls `check` with what decoding the request must give.
    pub fn with_meaning(&self, check: impl FnOnce(Result<Request<'_>, Rejected>)) {
        let words: Vec<&str> = self.means.iter().map(String::as_str).collect();
        let value_bytes = field(&words, "value").map(bytes).unwrap_or_default();
        let context_bytes = field(&words, "context").map(bytes).unwrap_or_default();
        let version = field(&words, "version").map_or(0, |text| text.parse().unwrap());
        let key = || Key::parse(&bytes(field(&words, "key").unwrap())).unwrap();
        if let ["dropped", reason] = words[..] {
            return check(Err(Rejected::Drop(drop_reason(reason))));
        }
        let format = self.format();
        if let [_, "rejected", why] = words[..] {
            return check(Err(Rejected::Answer { format, id: self.id(), status: status(why) }));
        }
        let operation = match words[1] {
            "put" => Operation::Put { key: key(), value: Value { bytes: &value_bytes, version } },
            "get" => Operation::Get { key: key() },
            "remove" => Operation::Remove { key: key() },
            "shutdown" => Operation::Shutdown,
            "wipeout" => Operation::Wipeout,
            "is-alive" => Operation::IsAlive,
            "get-pid" => Operation::GetPid,
            "get-membership-count" => Operation::GetMembershipCount,
            "get-membership-list" => Operation::GetMembershipList,
            "get-stats" => Operation::GetStats,
            "leave" => Operation::Leave,
            "put-with-context" => Operation::PutWithContext {
                key: key(),
                context: Context::parse(&context_bytes).unwrap(),
                value: Value { bytes: &value_bytes, version },
            },
            "get-siblings" => Operation::GetSiblings { key: key() },
            "get-placement" => {
                Operation::GetPlacement { offset: field(&words, "offset").unwrap().parse().unwrap() }
            }
            "locate" => Operation::Locate { key: key() },
            "unknown" => Operation::Unknown(words[2].parse().unwrap()),
            other => panic!("{}: no operation {other}", self.name),
        };
        check(Ok(Request { format, id: self.id(), operation }));
    }

    /// Calls `check` with what decoding the response must give.
    pub fn with_answer(&self, check: impl FnOnce(Response<'_>)) {
        let words: Vec<&str> = self.answers.iter().map(String::as_str).collect();
        let number = |name| field(&words, name).map(|text| text.parse().unwrap());
        let value_bytes = field(&words, "value").map(bytes);
        check(Response {
            id: self.id(),
            status: status(words[0]),
            value: value_bytes
                .as_deref()
                .map(|bytes| Value { bytes, version: number("version").unwrap_or_default() }),
            pid: number("pid"),
            overload_wait_ms: number("wait"),
            membership_count: number("count"),
        });
    }

    /// The layout of both datagrams.
    pub fn format(&self) -> Format {
        match self.means[0].as_str() {
            "raw" => Format::Raw,
            "protobuf" => Format::Protobuf,
            _ if self.accept.contains(&Accept::Protobuf) => Format::Protobuf,
            _ => Format::Raw,
        }
    }

    /// The command number of the request, 1 where it has none that can be read.
    pub fn command(&self) -> u32 {
        let mut command = 1;
        self.with_meaning(|meaning| {
            if let Ok(request) = meaning {
                command = request.operation.command();
            }
        });
        command
    }

    /// The id: all vectors that have one say it in the first 16 bytes, or behind the first field's tag
    /// and length; where fields come in another order it is looked up in the last one written.
    fn id(&self) -> MessageId {
        let id = match self.format() {
            Format::Raw => self.request.first_chunk::<16>().copied(),
            Format::Protobuf => {
                // A tag and a length of 16, and as many bytes behind them as an id has.
                let places = self.request.windows(18).rev();
                places
                    .filter(|window| window.starts_with(&[0x0a, 0x10]))
                    .find_map(|window| window[2..].first_chunk::<16>().copied())
            }
        };
        MessageId(id.expect("the vector has an id"))
    }
}

/// Hex, split anywhere by spaces or `+`, with `ab*3` for `ababab`.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for word in text.split([' ', '+']).filter(|word| !word.is_empty()) {
        let (digits, times) = match word.split_once('*') {
            Some((digits, times)) => (digits, times.parse().unwrap()),
            None => (word, 1),
        };
        let digits =
            (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap());
        let digits: Vec<u8> = digits.collect();
        out.extend(digits.repeat(times));
    }
    out
}

fn field<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn drop_reason(word: &str) -> DropReason {
    match word {
        "too-short" => DropReason::TooShort,
        "checksum" => DropReason::Checksum,
        "not-protobuf" => DropReason::NotProtobuf,
        other => panic!("no reason {other}"),
    }
}

fn status(word: &str) -> Status {
    match word {
        "success" => Status::Success,
        "no-such-key" => Status::NoSuchKey,
        "out-of-space" => Status::OutOfSpace,
        "overload" => Status::Overload,
        "internal-failure" => Status::InternalFailure,
        "unknown-command" => Status::UnknownCommand,
        "invalid-key" => Status::InvalidKey,
        "invalid-value" => Status::InvalidValue,
        "malformed" => Status::Malformed,
        other => Status::Other(other.strip_prefix("other-").and_then(|code| code.parse().ok()).unwrap()),
    }
}
