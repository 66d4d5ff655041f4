//! Every datagram of `vectors.txt` is read as it should be, and what we write is byte for byte what it
//! should be.

mod vector_file;

use vector_file::Vector;
use violet_client::wire::{self, Accept, DropReason, Format, Rejected, protobuf};

#[test]
fn requests_mean_what_they_should() {
    for_each(|vector| {
        for &accept in &vector.accept {
            vector.with_meaning(|meaning| {
                let decoded = wire::decode_request(&vector.request, accept);
                assert_eq!(decoded, meaning, "{} in mode {accept:?}", vector.name);
            });
        }
    });
}

/// So that no other test passes because the file was not read.
#[test]
fn the_file_is_read_to_its_end() {
    let vectors = vector_file::load();
    let read = |is_wanted: fn(&Vector) -> bool| vectors.iter().filter(|vector| is_wanted(vector)).count();
    let written = |start: &str| {
        let lines = include_str!("vectors.txt").lines();
        lines.filter(|line| line.starts_with(start)).count()
    };
    assert!(150 < vectors.len());
    assert_eq!(read(|_| true), written("vector "));
    assert_eq!(read(|vector| vector.is_request_exact), written("means exactly "));
    assert_eq!(read(|vector| vector.response.is_some()), written("response "));
    assert_eq!(read(|vector| vector.is_response_read_only), written("answers read-only "));
}

#[test]
fn a_raw_request_is_nothing_to_a_port_for_envelopes() {
    for_each(|vector| {
        if vector.format() == Format::Raw {
            let decoded = wire::decode_request(&vector.request, Accept::Protobuf);
            assert_eq!(decoded, Err(Rejected::Drop(DropReason::NotProtobuf)), "{}", vector.name);
        }
    });
}

#[test]
fn our_requests_are_those_of_the_clients() {
    for_each(|vector| {
        if vector.is_request_exact {
            vector.with_meaning(|meaning| {
                let mut written = b"kept".to_vec();
                wire::encode_request(&meaning.unwrap(), &mut written);
                let (kept, written) = written.split_at(4);
                assert_eq!((kept, hex(written)), (&b"kept"[..], hex(&vector.request)), "{}", vector.name);
            });
        }
    });
}

#[test]
fn responses_say_what_they_should() {
    for_each(|vector| {
        if let Some(response) = &vector.response {
            vector.with_answer(|answer| {
                let decoded = wire::decode_response(vector.format(), vector.command(), response);
                assert_eq!(decoded, Ok(answer), "{}", vector.name);
            });
        }
    });
}

#[test]
fn our_responses_are_byte_for_byte_right() {
    for_each(|vector| {
        if let (Some(response), false) = (&vector.response, vector.is_response_read_only) {
            vector.with_answer(|answer| {
                let mut written = b"kept".to_vec();
                wire::encode_response(vector.format(), &answer, &mut written);
                let (kept, written) = written.split_at(4);
                assert_eq!((kept, hex(written)), (&b"kept"[..], hex(response)), "{}", vector.name);
            });
        }
    });
}

/// Published with the protocol: the checksum of id 01020304 and payload 05060708.
#[test]
fn the_checksum_is_the_published_one() {
    assert_eq!(protobuf::checksum(&[1, 2, 3, 4], &[5, 6, 7, 8]), 1_070_237_893);
}

fn for_each(check: impl Fn(&Vector)) {
    vector_file::load().iter().for_each(check);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
