//! The longest and the shortest keys and values, and one byte beyond.

use violet_client::{Format, Operation, Status, Value};

use crate::cluster::{Cluster, Packet, StageResult, fail};
use crate::craft::Field;

const PUT: u32 = 1;
const GET: u32 = 2;
const REMOVE: u32 = 3;

/// An empty value is stored in protobuf and refused with code 6 in raw.
pub fn empty_value(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let via = cluster.any();
    match cluster.format {
        Format::Protobuf => {
            cluster.put(via, key, &[], 3)?;
            let via = cluster.any();
            cluster.get(via, key, &[], 3)
        }
        Format::Raw => {
            let put = Operation::Put { key, value: Value { bytes: &[], version: 0 } };
            cluster.expect(via, put, Status::InvalidValue)?;
            let via = cluster.any();
            cluster.get_nothing(via, key)
        }
    }
}

/// Keys of 1 and 32 bytes, all bytes zero, and too long ones.
pub fn keys(cluster: &mut Cluster) -> StageResult {
    for bytes in [vec![1; 1], vec![0; 32], cluster.random.bytes(32), cluster.random.bytes(31)] {
        let key = violet_client::Key::parse(&bytes).expect("these lengths are legal");
        let via = cluster.any();
        cluster.put(via, key, &bytes, 1)?;
        let via = cluster.any();
        cluster.get(via, key, &bytes, 1)?;
        let via = cluster.any();
        cluster.remove(via, key)?;
    }
    if cluster.format == Format::Raw {
        // Raw keys are always 32 bytes; nothing else can be expressed.
        return Ok(());
    }
    padded_keys_differ(cluster)?;
    for key_bytes in [33, 128] {
        for (command, name) in [(PUT, "PUT"), (GET, "GET"), (REMOVE, "REMOVE")] {
            let what = format!("{name} with a key of {key_bytes} bytes");
            let packet = keyed(cluster, command, &vec![7; key_bytes], &what);
            let via = cluster.any();
            cluster.expect_packet(via, packet, Status::InvalidKey)?;
        }
    }
    // No grader sends an empty key; whatever the answer, it must be one.
    let packet = keyed(cluster, PUT, &[], "PUT with an empty key");
    let via = cluster.any();
    let reply = cluster.ask_packet(via, packet)?;
    if reply.status != Status::InvalidKey {
        cluster.note(format!("an empty key is answered with {}", reply.status));
    }
    cluster.still_alive(via, "a PUT with an empty key")
}

fn keyed(cluster: &mut Cluster, command: u32, key: &[u8], what: &str) -> Packet {
    let put = [
        Field::Varint(1, u64::from(command)),
        Field::Bytes(2, key),
        Field::Bytes(3, b"value"),
        Field::Varint(4, 1),
    ];
    cluster.crafted(command, if command == PUT { &put } else { &put[..2] }, what)
}

/// 07000000 and its padding to 32 bytes are different keys in protobuf.
fn padded_keys_differ(cluster: &mut Cluster) -> StageResult {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&cluster.random.bytes(4));
    let short = violet_client::Key::parse(&bytes[..4]).expect("four bytes are legal");
    let long = violet_client::Key::parse(&bytes).expect("32 bytes are legal");
    let via = cluster.any();
    cluster.put(via, short, b"short", 1)?;
    cluster.get_nothing(via, long)?;
    cluster.put(via, long, b"long", 2)?;
    cluster.get(via, short, b"short", 1)
}

/// The longest values work, longer ones are refused and not stored.
pub fn values(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let longest = cluster.random.bytes(10_000);
    let via = cluster.any();
    cluster.put(via, key, &longest, 1)?;
    let via = cluster.any();
    cluster.get(via, key, &longest, 1)?;
    match cluster.format {
        Format::Protobuf => too_long(cluster, &[10_001, 12_000])?,
        Format::Raw => {
            length_of_2015(cluster)?;
            too_long(cluster, &[15_001, 20_000])?;
            impossible_length(cluster)?;
        }
    }
    let via = cluster.any();
    cluster.get(via, key, &longest, 1)
}

fn too_long(cluster: &mut Cluster, lengths: &[usize]) -> StageResult {
    for &value_bytes in lengths {
        let key = cluster.fresh_key();
        let bytes = cluster.random.bytes(value_bytes);
        let via = cluster.any();
        let put = Operation::Put { key, value: Value { bytes: &bytes, version: 1 } };
        cluster.expect(via, put, Status::InvalidValue)?;
        let via = cluster.any();
        cluster.get_nothing(via, key)?;
    }
    Ok(())
}

/// 15,000 bytes were legal in 2015 and are not in 2016: a server may do either, but it must mean it.
fn length_of_2015(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let bytes = cluster.random.bytes(15_000);
    let via = cluster.any();
    let reply = cluster.ask(via, Operation::Put { key, value: Value { bytes: &bytes, version: 0 } })?;
    let via = cluster.any();
    match reply.status {
        Status::Success => cluster.get(via, key, &bytes, 0),
        Status::InvalidValue => {
            cluster.note("values of 15,000 bytes are refused, as in 2016");
            cluster.get_nothing(via, key)
        }
        status => fail(format!("PUT of 15000 bytes: expected code 0 (2015) or 6 (2016), got {status}")),
    }
}

/// The length field of the 2016 graders: 0x7f7f, with few bytes behind it.
fn impossible_length(cluster: &mut Cluster) -> StageResult {
    let key = cluster.fresh_key();
    let mut packet = cluster.packet(Operation::Put { key, value: Value { bytes: &[1; 32], version: 0 } });
    packet.bytes[49..51].copy_from_slice(&0x7f7f_u16.to_le_bytes());
    packet.what = "PUT with length field 0x7f7f".to_owned();
    let via = cluster.any();
    cluster.expect_packet(via, packet, Status::InvalidValue)?;
    Ok(())
}
