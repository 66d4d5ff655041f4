//! Datagrams that no honest client sends, each followed by a sign of life from the same server.
//!
//! Raw and protobuf share a port on many servers, so bytes meant as garbage can be a raw command. The
//! byte at the command's place (the 17th) is therefore never one that destroys something.

use std::time::Duration;

use violet_client::wire::decode_response;
use violet_client::{Format, Key, Operation, Status, Value};

use crate::cluster::{Cluster, StageResult, fail};
use crate::craft::{self, Field};

/// How long to wait for a reply that is not due.
const SILENCE: Duration = Duration::from_millis(200);
/// Lengths around the borders of headers, packets, buffers and fields.
const LENGTHS: [usize; 33] = [
    0, 1, 2, 3, 15, 16, 17, 18, 33, 48, 49, 50, 51, 52, 82, 83, 84, 127, 128, 129, 1_472, 1_473, 8_192,
    9_000, 10_052, 15_051, 16_383, 16_384, 16_385, 32_768, 65_505, 65_506, 65_507,
];
/// Mutated datagrams that are sent in one go.
const MUTATIONS: usize = 400;
/// Where the raw command stands.
const COMMAND_AT: usize = 16;
/// A command that nobody knows.
const HARMLESS: u8 = 0x63;

/// Everything malformed, on the first and on a random server.
pub fn malformed(cluster: &mut Cluster) -> StageResult {
    lengths(cluster)?;
    random_bytes(cluster)?;
    match cluster.format {
        Format::Raw => raw(cluster)?,
        Format::Protobuf => protobuf(cluster)?,
    }
    mutations(cluster)
}

/// Sends something once, ignores what comes back, and asks for a sign of life.
fn send_and_probe(cluster: &mut Cluster, server: usize, bytes: &[u8], what: &str) -> StageResult {
    let socket = cluster.socket()?;
    let _ = socket.send_to(bytes, cluster.servers[server]);
    cluster.still_alive(server, what)
}

fn lengths(cluster: &mut Cluster) -> StageResult {
    for fill in [0x00, 0xff, 0x0a] {
        for length in LENGTHS {
            let mut bytes = vec![fill; length];
            if let Some(command) = bytes.get_mut(COMMAND_AT) {
                *command = HARMLESS;
            }
            let via = cluster.any();
            send_and_probe(cluster, via, &bytes, &format!("{length} bytes of {fill:#04x}"))?;
        }
    }
    Ok(())
}

fn random_bytes(cluster: &mut Cluster) -> StageResult {
    for length in [13_000, 100, 1_000, 65_507] {
        let mut bytes = cluster.random.bytes(length);
        bytes[COMMAND_AT] = HARMLESS;
        let via = cluster.any();
        send_and_probe(cluster, via, &bytes, &format!("{length} random bytes"))?;
    }
    Ok(())
}

/// Bit flips and cuts in good requests.
fn mutations(cluster: &mut Cluster) -> StageResult {
    let socket = cluster.socket()?;
    let key = cluster.fresh_key();
    for _ in 0..MUTATIONS {
        let value = cluster.random.bytes(20);
        let mut packet = match cluster.random.below(3) {
            0 => cluster.packet(Operation::Put { key, value: Value { bytes: &value, version: 1 } }),
            1 => cluster.packet(Operation::Get { key }),
            _ => cluster.packet(Operation::Remove { key }),
        };
        let length = packet.bytes.len();
        if cluster.random.below(4) == 0 {
            packet.bytes.truncate(cluster.random.below(length));
        } else {
            for _ in 0..=cluster.random.below(3) {
                packet.bytes[cluster.random.below(length)] ^= 1 << cluster.random.below(8);
            }
        }
        // A flip must not turn a raw command into SHUTDOWN or WIPEOUT.
        if let Some(command @ 4..=5) = packet.bytes.get_mut(COMMAND_AT) {
            *command = HARMLESS;
        }
        let via = cluster.any();
        let _ = socket.send_to(&packet.bytes, cluster.servers[via]);
    }
    cluster.live().into_iter().try_for_each(|server| cluster.still_alive(server, "mutated requests"))
}

fn raw(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let value = cluster.random.bytes(100);
    let whole = cluster.packet(Operation::Put { key, value: Value { bytes: &value, version: 0 } }).bytes;
    refused(cluster, &whole[..whole.len() - 1], "a PUT of length 100 with 99 bytes")?;
    refused(cluster, &whole[..49], "a PUT of 49 bytes, without a length field")?;
    refused(cluster, &whole[..50], "a PUT of 50 bytes, with half a length field")?;
    let via = cluster.any();
    cluster.get_nothing(via, key)?;
    padded_put(cluster, key)?;
    // The clients of 2015 send management commands without a key.
    for (command, status) in [(99, Status::UnknownCommand), (5, Status::Success)] {
        let operation = if command == 5 { Operation::Wipeout } else { Operation::Unknown(command) };
        let mut packet = cluster.packet(operation);
        packet.bytes.truncate(17);
        packet.what = format!("command {command} in 17 bytes");
        let via = cluster.any();
        cluster.expect_packet(via, packet, status)?;
    }
    Ok(())
}

/// 2016: silence or a code from 7 on is right, 1 to 6 earned half of the marks, success is wrong.
fn refused(cluster: &mut Cluster, bytes: &[u8], what: &str) -> StageResult {
    let via = cluster.any();
    for reply in cluster.listen(via, bytes, SILENCE, Duration::ZERO)? {
        match decode_response(Format::Raw, 1, &reply).map(|response| response.status.code(Format::Raw)) {
            Ok(0) => return fail(format!("{what} is answered with success")),
            Ok(code @ 1..=6) => {
                cluster.note(format!("{what} is answered with code {code}; better silence or 7 to 127"))
            }
            Ok(_) => {}
            Err(error) => return fail(format!("{what}: {error}")),
        }
    }
    cluster.still_alive(via, what)
}

/// The fixed datagram of 83 bytes of the 2016 clients: 8 bytes of value and padding behind them.
fn padded_put(cluster: &mut Cluster, key: Key) -> StageResult {
    let value = cluster.random.bytes(8);
    let mut packet = cluster.packet(Operation::Put { key, value: Value { bytes: &value, version: 0 } });
    packet.bytes.resize(83, 0);
    packet.what = "PUT of 8 bytes padded to 83".to_owned();
    let via = cluster.any();
    cluster.expect_packet(via, packet, Status::Success)?;
    let via = cluster.any();
    cluster.get(via, key, &value, 0)
}

fn protobuf(cluster: &mut Cluster) -> StageResult {
    bad_checksum(cluster)?;
    truncated(cluster)?;
    unknown_fields(cluster)?;
    field_order(cluster)?;
    broken_payload(cluster)
}

/// A wrong checksum: no answer, and nothing is stored.
fn bad_checksum(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    for server in cluster.live() {
        let mut packet =
            cluster.packet(Operation::Put { key, value: Value { bytes: b"damaged", version: 1 } });
        let last = packet.bytes.len() - 8;
        packet.bytes[last] ^= 1;
        let replies = cluster.listen(server, &packet.bytes, SILENCE, Duration::ZERO)?;
        if !replies.is_empty() {
            let place = cluster.servers[server];
            return fail(format!("{place} answers a PUT with a wrong checksum; it must be dropped"));
        }
        cluster.still_alive(server, "a PUT with a wrong checksum")?;
    }
    let via = cluster.any();
    cluster.get_nothing(via, key)
}

fn truncated(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let whole =
        cluster.packet(Operation::Put { key, value: Value { bytes: b"cut short", version: 1 } }).bytes;
    let socket = cluster.socket()?;
    for length in 0..whole.len() {
        let via = cluster.any();
        let _ = socket.send_to(&whole[..length], cluster.servers[via]);
    }
    for server in cluster.live() {
        cluster.still_alive(server, "envelopes cut short")?;
    }
    let via = cluster.any();
    cluster.get_nothing(via, key)
}

/// Several student clients send fields of their own.
fn unknown_fields(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let fields = [
        Field::Varint(1, 1),
        Field::Bytes(2, key.as_bytes()),
        Field::Varint(5, 77),
        Field::Bytes(6, b"extra"),
        Field::Fixed64(7, 1),
        Field::Fixed32(8, 1),
        Field::Bytes(3, b"kept"),
        Field::Varint(4, 12),
        Field::Bytes(100, b"more"),
    ];
    let packet = cluster.crafted(1, &fields, "PUT with unknown fields");
    let via = cluster.any();
    cluster.expect_packet(via, packet, Status::Success)?;
    let via = cluster.any();
    cluster.get(via, key, b"kept", 12)
}

/// Fields of the request and of the envelope in another order than theirs.
fn field_order(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let fields = [
        Field::Varint(4, 9),
        Field::Bytes(3, b"order"),
        Field::Bytes(2, key.as_bytes()),
        Field::Varint(1, 1),
    ];
    let mut packet = cluster.crafted(1, &fields, "PUT with its fields in reverse order");
    let payload = craft::message(&fields);
    let sum = violet_client::wire::protobuf::checksum(&packet.id.0, &payload);
    packet.bytes =
        craft::message(&[Field::Fixed64(3, sum), Field::Bytes(2, &payload), Field::Bytes(1, &packet.id.0)]);
    let socket = cluster.socket()?;
    let via = cluster.any();
    let reply = cluster.deliver(&socket, via, &packet)?;
    cluster.insist(&packet.what, via, &reply, Status::Success)?;
    let via = cluster.any();
    cluster.get(via, key, b"order", 9)
}

/// Whole envelopes with right checksums around payloads that are no request. Any answer will do, also
/// none: libraries differ in what they call a message.
fn broken_payload(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let good = craft::message(&[Field::Varint(1, 1), Field::Bytes(2, key.as_bytes()), Field::Bytes(3, b"x")]);
    let mut endless = good.clone();
    endless.extend([0x22, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    let mut group = good.clone();
    group.extend([0x7b, 0x7c]);
    let payloads: [(&str, &[u8]); 4] = [
        ("a request cut in its key", &good[..good.len() - 6]),
        ("a request with a length beyond its end", &endless),
        ("a request with a group in it", &group),
        ("ten bytes of 0xff", &[0xff; 10]),
    ];
    for (what, payload) in payloads {
        let id = cluster.fresh_id();
        let via = cluster.any();
        send_and_probe(cluster, via, &craft::envelope(id, payload), what)?;
    }
    Ok(())
}
