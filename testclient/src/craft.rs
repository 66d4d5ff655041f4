//! Datagrams made by hand, for what the ordinary encoder rightly cannot produce: other field orders,
//! unknown fields, wrong checksums, missing bytes; and a look at replies below the decoder's level.

use violet_client::wire::protobuf::{Envelope, checksum};
use violet_client::{Format, MessageId};

/// One protobuf field, number and contents.
#[derive(Clone, Debug)]
pub enum Field<'a> {
    /// Wire type 0.
    Varint(u64, u64),
    /// Wire type 2.
    Bytes(u64, &'a [u8]),
    /// Wire type 1.
    Fixed64(u64, u64),
    /// Wire type 5.
    Fixed32(u64, u32),
}

/// Appends fields in the given order.
pub fn push_fields(out: &mut Vec<u8>, fields: &[Field<'_>]) {
    for field in fields {
        match *field {
            Field::Varint(number, value) => {
                push_varint(out, number << 3);
                push_varint(out, value);
            }
            Field::Fixed64(number, value) => {
                push_varint(out, number << 3 | 1);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Field::Bytes(number, bytes) => {
                push_varint(out, number << 3 | 2);
                push_varint(out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
            Field::Fixed32(number, value) => {
                push_varint(out, number << 3 | 5);
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
    }
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while 0x80 <= number {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The fields as a message.
pub fn message(fields: &[Field<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    push_fields(&mut out, fields);
    out
}

/// An envelope around a payload, with a right checksum.
pub fn envelope(id: MessageId, payload: &[u8]) -> Vec<u8> {
    let sum = checksum(&id.0, payload);
    message(&[Field::Bytes(1, &id.0), Field::Bytes(2, payload), Field::Fixed64(3, sum)])
}

/// Gives an encoded request another id.
pub fn replace_id(format: Format, id: MessageId, datagram: &mut Vec<u8>) {
    match format {
        Format::Raw => datagram[..id.0.len()].copy_from_slice(&id.0),
        Format::Protobuf => {
            let parsed = Envelope::parse(datagram).expect("the datagram was encoded by this program");
            *datagram = envelope(id, parsed.payload);
        }
    }
}

/// Whether a reply has all that proto2 readers insist on: an envelope with its three fields, and an
/// error code that is written also when it is 0. A proto3 library leaves such zeros out.
pub fn is_readable_by_proto2(datagram: &[u8]) -> bool {
    Envelope::parse(datagram).is_some_and(|envelope| has_field(envelope.payload, 1) == Some(true))
}

/// Whether a protobuf message holds a field, whatever its wire type; `None` if it is no message.
pub fn has_field(mut message: &[u8], wanted: u64) -> Option<bool> {
    let mut found = false;
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        found |= tag >> 3 == wanted;
        let skip = match tag & 7 {
            0 => {
                take_varint(&mut message)?;
                0
            }
            1 => 8,
            2 => usize::try_from(take_varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        message = message.get(skip..)?;
    }
    Some(found)
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (index, &byte) in message.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *message = &message[index + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use violet_client::wire::{Accept, decode_request, encode_request};
    use violet_client::{Operation, Request};

    #[test]
    fn a_new_id_is_all_that_changes() {
        for format in [Format::Raw, Format::Protobuf] {
            let mut datagram = Vec::new();
            let request = Request { format, id: MessageId([0x81; 16]), operation: Operation::Wipeout };
            encode_request(&request, &mut datagram);
            replace_id(format, MessageId([0x92; 16]), &mut datagram);
            let decoded = decode_request(&datagram, Accept::Auto).unwrap();
            assert_eq!(decoded, Request { id: MessageId([0x92; 16]), ..request });
        }
    }

    #[test]
    fn fields_are_found_or_missed() {
        let bytes = message(&[Field::Bytes(2, b"xyz"), Field::Fixed32(9, 7), Field::Varint(1, 300)]);
        assert_eq!(has_field(&bytes, 1), Some(true));
        assert_eq!(has_field(&bytes, 9), Some(true));
        assert_eq!(has_field(&bytes, 3), Some(false));
        assert_eq!(has_field(&bytes[..bytes.len() - 1], 3), None);
        assert_eq!(has_field(&[], 1), Some(false));
    }
}
