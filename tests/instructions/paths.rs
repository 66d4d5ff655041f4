//! The way of one request without a cluster: decode, store, encode, each alone and all together.
//!
//! Keys have 32 bytes and are all there. A GET copies the value from the store into a buffer and from there
//! into the reply; a PUT replaces a value of the same length.

use std::hint::black_box;
use std::sync::Arc;

use violet::cluster::placement::{PartitionTable, suggested_partitions_log2};
use violet::ids::Version;
use violet::storage::chunks::Chunks;
use violet::storage::ram::Ram;
use violet::storage::{Budget, Engine, Record};
use violet_client::wire::{self, Accept};
use violet_client::{Format, Key, MessageId, Operation, Request, Response, Status, Value};

use crate::Wanted;

/// Keys that take turns, and how often each has its turn.
const KEYS: usize = 64;
const ROUNDS: usize = 4;
const TIMES: usize = KEYS * ROUNDS;
/// Lengths of values. Longer ones say nothing: callgrind counts a copy byte by byte.
const VALUE_BYTES: [usize; 2] = [100, 1_000];
/// The row that the limits in the book are about begins so.
pub const WHOLE: &str = "whole";

pub fn run(wanted: Wanted<'_>) {
    if !["decode", "store", "encode", WHOLE].iter().any(|group| wanted.has(group)) {
        return;
    }
    for bytes in VALUE_BYTES {
        for format in [Format::Raw, Format::Protobuf] {
            let mut path = Path::new(format, bytes);
            // What is counted is the second time: memory is there, and buffers are as long as they get.
            path.run(Wanted("nothing has this name"));
            path.run(wanted);
        }
    }
}

pub fn key_of(number: usize) -> Key {
    let mut bytes = [b'k'; 32];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    Key::parse(&bytes).expect("32 bytes are allowed")
}

pub fn id_of(number: usize) -> MessageId {
    let mut bytes = [0x55; 16];
    bytes[8..].copy_from_slice(&(number as u64).to_le_bytes());
    MessageId(bytes)
}

/// The layout's name in the table.
pub fn name_of(format: Format) -> &'static str {
    match format {
        Format::Raw => "raw",
        Format::Protobuf => "protobuf",
    }
}

struct Path {
    format: Format,
    value: Vec<u8>,
    gets: Vec<Vec<u8>>,
    puts: Vec<Vec<u8>>,
    table: PartitionTable,
    engine: Ram,
    time: u64,
}

impl Path {
    fn new(format: Format, value_bytes: usize) -> Self {
        let value = vec![0x61; value_bytes];
        let written = |number: usize, operation: Operation<'_>| {
            let mut datagram = Vec::new();
            wire::encode_request(&Request { format, id: id_of(number), operation }, &mut datagram);
            datagram
        };
        let put = |number| {
            let value = Value { bytes: &value, version: 0 };
            written(number, Operation::Put { key: key_of(number), value })
        };
        let get = |number| written(number, Operation::Get { key: key_of(number) });
        let budget = Arc::new(Budget::new(256 * 1024 * 1024));
        Self {
            format,
            gets: (0..KEYS).map(get).collect(),
            puts: (0..KEYS).map(put).collect(),
            table: PartitionTable::new(&[1, 2, 3, 4, 5], 3, suggested_partitions_log2(3)),
            engine: Ram::new(Chunks::new(budget, 0, false), 7),
            time: 0,
            value,
        }
    }

    fn run(&mut self, wanted: Wanted<'_>) {
        let layout = name_of(self.format);
        self.puts(wanted, layout);
        self.gets(wanted, layout);
    }

    fn puts(&mut self, wanted: Wanted<'_>, layout: &str) {
        let Self { format, value, puts, table, engine, time, .. } = self;
        let bytes = value.len();
        let keys: Vec<Key> = (0..KEYS).map(key_of).collect();
        let mut reply = Vec::new();
        wanted.count(&format!("decode {layout} PUT {bytes} B"), TIMES, || {
            for datagram in turns(puts) {
                black_box(decoded(datagram));
            }
        });
        if *format == Format::Raw {
            wanted.count(&format!("store PUT {bytes} B"), TIMES, || {
                for key in turns(&keys) {
                    store(engine, table, time, key, Value { bytes: black_box(value), version: 0 });
                }
            });
        }
        // A reply without a value has one length, whatever was written.
        if bytes == VALUE_BYTES[0] {
            wanted.count(&format!("encode {layout} PUT"), TIMES, || {
                for number in 0..TIMES {
                    reply.clear();
                    let response = Response::of_status(id_of(number), Status::Success);
                    wire::encode_response(*format, black_box(&response), &mut reply);
                }
            });
        }
        wanted.count(&format!("{WHOLE} {layout} PUT {bytes} B"), TIMES, || {
            for datagram in turns(puts) {
                let request = decoded(datagram);
                let Operation::Put { key, value } = request.operation else { unreachable!("all are PUTs") };
                store(engine, table, time, &key, value);
                reply.clear();
                let response = Response::of_status(request.id, Status::Success);
                wire::encode_response(request.format, &response, &mut reply);
                black_box(&reply);
            }
        });
    }

    fn gets(&mut self, wanted: Wanted<'_>, layout: &str) {
        let Self { format, value, gets, table, engine, .. } = self;
        let bytes = value.len();
        let keys: Vec<Key> = (0..KEYS).map(key_of).collect();
        let (mut found, mut reply) = (Vec::new(), Vec::new());
        // A question without a value has one length, whatever is read.
        if bytes == VALUE_BYTES[0] {
            wanted.count(&format!("decode {layout} GET"), TIMES, || {
                for datagram in turns(gets) {
                    black_box(decoded(datagram));
                }
            });
        }
        if *format == Format::Raw {
            wanted.count(&format!("store GET {bytes} B"), TIMES, || {
                for key in turns(&keys) {
                    black_box(look_up(engine, table, key, &mut found));
                }
            });
        }
        wanted.count(&format!("encode {layout} GET {bytes} B"), TIMES, || {
            for number in 0..TIMES {
                reply.clear();
                let value = Some(Value { bytes: value, version: 0 });
                let response = Response { value, ..Response::of_status(id_of(number), Status::Success) };
                wire::encode_response(*format, black_box(&response), &mut reply);
            }
        });
        wanted.count(&format!("{WHOLE} {layout} GET {bytes} B"), TIMES, || {
            for datagram in turns(gets) {
                let request = decoded(datagram);
                let Operation::Get { key } = request.operation else { unreachable!("all are GETs") };
                let version = look_up(engine, table, &key, &mut found);
                reply.clear();
                let value = Some(Value { bytes: &found, version });
                let response = Response { value, ..Response::of_status(request.id, Status::Success) };
                wire::encode_response(request.format, &response, &mut reply);
                black_box(&reply);
            }
        });
        assert_eq!(found.len(), bytes, "every key is there");
    }
}

fn turns<T>(items: &[T]) -> impl Iterator<Item = &T> {
    items.iter().cycle().take(TIMES)
}

fn decoded(datagram: &[u8]) -> Request<'_> {
    wire::decode_request(black_box(datagram), Accept::Auto).expect("it was written by the same library")
}

fn store(engine: &Ram, table: &PartitionTable, time: &mut u64, key: &Key, value: Value<'_>) {
    *time += 1;
    let version = Version { time: *time, writer: 1 };
    let record = Record { version, value: Some(value), is_set: false };
    black_box(engine.write(table.partition_of(key.as_bytes()), key, &record, false));
}

fn look_up(engine: &Ram, table: &PartitionTable, key: &Key, found: &mut Vec<u8>) -> i32 {
    found.clear();
    let meta = engine.read(table.partition_of(key.as_bytes()), key, found);
    meta.expect("every key is there").client_version
}
