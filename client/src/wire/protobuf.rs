//! The checksummed envelope of 2017 to 2025, read and written by hand.
//!
//! ```text
//! Msg        { bytes messageID = 1; bytes payload = 2; fixed64 checkSum = 3; }
//! KVRequest  { uint32 command = 1; bytes key = 2; bytes value = 3; int32 version = 4; }
//! KVResponse { uint32 errCode = 1; bytes value = 2; int32 pid = 3; int32 version = 4;
//!              int32 overloadWaitTime = 5; int32 membershipCount = 6; }
//! ```
//!
//! The checksum is CRC-32 (IEEE) over id and payload as they stand in the datagram. Fields may come
//! in any order, the last of a kind wins, unknown fields are skipped. Readers of proto2 insist on
//! `errCode`, `payload` and `checkSum`, so all three are always written, zeros too; a GET reply
//! always says its version. Some writers of proto3 leave an empty payload out of their replies, so a
//! *reply* without one is read as success with nothing to say. By hand rather than by a generator:
//! decoding borrows from the datagram and allocates nothing.
//!
//! Deliberately not here: groups (wire types 3 and 4), which no schema of the course has.

use super::{
    DropReason, Format, GET_PLACEMENT_COMMAND, GET_SIBLINGS_COMMAND, Key, LOCATE_COMMAND, MESSAGE_ID_BYTES,
    MessageId, Operation, PROTOBUF_VALUE_BYTES_MAX, PUT_WITH_CONTEXT_COMMAND, Rejected, Request, Response,
    ResponseError, Status, Value, placement, siblings,
};

const WIRE_VARINT: u64 = 0;
const WIRE_FIXED64: u64 = 1;
const WIRE_BYTES: u64 = 2;
const WIRE_FIXED32: u64 = 5;
const VARINT_BYTES_MAX: usize = 10;
/// Tags are a field number from 1 to 2^29 - 1 and three bits of wire type. Anything else is no message.
const FIELD_TAGS: std::ops::RangeInclusive<u64> = 1 << 3..=u32::MAX as u64;

/// Up to this length id and payload are put together before they are hashed: that is quicker than to hash twice.
const JOINED_BYTES_MAX: usize = 256;

/// CRC-32 over id and payload, widened to the 64 bits of the field.
#[must_use]
pub fn checksum(id: &[u8], payload: &[u8]) -> u64 {
    let length = id.len() + payload.len();
    if length <= JOINED_BYTES_MAX {
        let mut joined = [0; JOINED_BYTES_MAX];
        joined[..id.len()].copy_from_slice(id);
        joined[id.len()..length].copy_from_slice(payload);
        return u64::from(crc32fast::hash(&joined[..length]));
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(id);
    hasher.update(payload);
    u64::from(hasher.finalize())
}

/// A datagram that parses as `Msg`: all three fields with their wire types, an id of 16 bytes,
/// nothing left over. Its checksum has not been looked at.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// The message id.
    pub id: MessageId,
    /// The raw payload bytes.
    pub payload: &'a [u8],
    /// The checksum as written.
    pub checksum: u64,
}

impl<'a> Envelope<'a> {
    /// Parses the outer message; `None` when the datagram is something else.
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (envelope, has_payload) = Self::parse_loosely(datagram)?;
        has_payload.then_some(envelope)
    }

    /// As every protobuf library writes it: the three fields in their order and nothing else.
    fn parse_usual(datagram: &'a [u8]) -> Option<Self> {
        let rest = datagram.strip_prefix(&[(1 << 3 | WIRE_BYTES) as u8, MESSAGE_ID_BYTES as u8])?;
        let (id, rest) = rest.split_first_chunk::<MESSAGE_ID_BYTES>()?;
        let mut rest = Fields(rest.strip_prefix(&[(2 << 3 | WIRE_BYTES) as u8])?);
        let length = usize::try_from(rest.varint()?).ok()?;
        let (payload, rest) = rest.0.split_at_checked(length)?;
        let sum = rest.strip_prefix(&[(3 << 3 | WIRE_FIXED64) as u8])?;
        Some(Self { id: MessageId(*id), payload, checksum: u64::from_le_bytes(sum.try_into().ok()?) })
    }

    /// As [`Self::parse`], but the payload may be absent; says whether it was there.
    fn parse_loosely(datagram: &'a [u8]) -> Option<(Self, bool)> {
        if let Some(envelope) = Self::parse_usual(datagram) {
            return Some((envelope, true));
        }
        let mut id = None;
        let mut payload = None;
        let mut sum = None;
        let mut fields = Fields(datagram);
        while let Some(field) = fields.next()? {
            match field {
                (1, Field::Bytes(bytes)) => id = Some(<[u8; MESSAGE_ID_BYTES]>::try_from(bytes).ok()?),
                (2, Field::Bytes(bytes)) => payload = Some(bytes),
                (3, Field::Fixed64(number)) => sum = Some(number),
                (1..=3, _) => return None,
                _ => {}
            }
        }
        let envelope = Self { id: MessageId(id?), payload: payload.unwrap_or_default(), checksum: sum? };
        Some((envelope, payload.is_some()))
    }

    /// Whether the checksum fits the id and payload.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.checksum == checksum(&self.id.0, self.payload)
    }

    /// Decodes the payload as a request.
    ///
    /// # Errors
    /// A wrong checksum is dropped; anything else can be answered.
    pub fn decode_request(&self) -> Result<Request<'a>, Rejected> {
        if !self.is_intact() {
            return Err(Rejected::Drop(DropReason::Checksum));
        }
        let reject = |status| Rejected::Answer { format: Format::Protobuf, id: self.id, status };
        let operation = decode_operation(self.payload).map_err(reject)?;
        Ok(Request { format: Format::Protobuf, id: self.id, operation })
    }
}

fn decode_operation(payload: &[u8]) -> Result<Operation<'_>, Status> {
    let mut command = 0u32;
    let mut key: &[u8] = &[];
    let mut value = Value::default();
    let mut fields = Fields(payload);
    while let Some(field) = fields.next().ok_or(Status::Malformed)? {
        match field {
            (1, Field::Varint(number)) => command = number as u32,
            (2, Field::Bytes(bytes)) => key = bytes,
            (3, Field::Bytes(bytes)) => value.bytes = bytes,
            (4, Field::Varint(number)) => value.version = number as i32,
            (1..=4, _) => return Err(Status::Malformed),
            _ => {}
        }
    }
    if let Some(operation) = Operation::without_key(command) {
        return Ok(operation);
    }
    if command == GET_PLACEMENT_COMMAND {
        return Ok(Operation::GetPlacement { offset: placement::offset_of(key)? });
    }
    let key = Key::parse(key)?;
    match command {
        1 if PROTOBUF_VALUE_BYTES_MAX < value.bytes.len() => Err(Status::InvalidValue),
        1 => Ok(Operation::Put { key, value }),
        2 => Ok(Operation::Get { key }),
        PUT_WITH_CONTEXT_COMMAND => {
            let (context, bytes) = siblings::split_context(value.bytes)?;
            Ok(Operation::PutWithContext { key, context, value: Value { bytes, ..value } })
        }
        GET_SIBLINGS_COMMAND => Ok(Operation::GetSiblings { key }),
        LOCATE_COMMAND => Ok(Operation::Locate { key }),
        _ => Ok(Operation::Remove { key }),
    }
}

/// Appends a request of this layout. A PUT always says its version, as the 2019 clients do, and so does a
/// PutWithContext.
pub fn encode_request(request: &Request<'_>, out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(64);
    push_operation(&request.operation, &mut payload);
    encode_envelope(&request.id, payload.len(), out, |out| out.extend_from_slice(&payload));
}

fn push_operation(operation: &Operation<'_>, out: &mut Vec<u8>) {
    push_number(out, 1, u64::from(operation.command()));
    if let Some(key) = operation.key() {
        push_bytes(out, 2, key.as_bytes());
    }
    match operation {
        Operation::GetPlacement { offset } => push_bytes(out, 2, &offset.to_le_bytes()),
        Operation::Put { value, .. } => {
            push_bytes(out, 3, value.bytes);
            push_i32(out, 4, value.version);
        }
        Operation::PutWithContext { context, value, .. } => {
            push_varint(out, 3 << 3 | WIRE_BYTES);
            push_varint(out, siblings::put_with_context_bytes(context, value.bytes) as u64);
            siblings::push_with_context(context, value.bytes, out);
            push_i32(out, 4, value.version);
        }
        _ => {}
    }
}

/// Appends a response of this layout.
pub fn encode_response(response: &Response<'_>, out: &mut Vec<u8>) {
    let code = u64::from(response.status.code(Format::Protobuf));
    let optional = |number: Option<i32>| number.map_or(0, i32_bytes);
    let value_bytes =
        response.value.map_or(0, |value| bytes_bytes(value.bytes.len()) + i32_bytes(value.version));
    let payload_bytes = number_bytes(code)
        + value_bytes
        + optional(response.pid)
        + optional(response.overload_wait_ms)
        + optional(response.membership_count);
    encode_envelope(&response.id, payload_bytes, out, |out| {
        push_number(out, 1, code);
        if let Some(value) = response.value {
            push_bytes(out, 2, value.bytes);
        }
        if let Some(pid) = response.pid {
            push_i32(out, 3, pid);
        }
        if let Some(value) = response.value {
            push_i32(out, 4, value.version);
        }
        if let Some(wait) = response.overload_wait_ms {
            push_i32(out, 5, wait);
        }
        if let Some(count) = response.membership_count {
            push_i32(out, 6, count);
        }
    });
}

/// Writes the envelope around a payload of this length.
fn encode_envelope(
    id: &MessageId,
    payload_bytes: usize,
    out: &mut Vec<u8>,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    out.reserve(bytes_bytes(MESSAGE_ID_BYTES) + bytes_bytes(payload_bytes) + 1 + size_of::<u64>());
    push_bytes(out, 1, &id.0);
    push_varint(out, 2 << 3 | WIRE_BYTES);
    push_varint(out, payload_bytes as u64);
    let payload_at = out.len();
    payload(out);
    debug_assert_eq!(out.len() - payload_at, payload_bytes, "the length was told before");
    let sum = checksum(&id.0, &out[payload_at..]);
    push_varint(out, 3 << 3 | WIRE_FIXED64);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// Puts another id into a request that [`encode_request`] wrote, and mends the checksum.
pub(super) fn replace_id(datagram: &mut [u8], id: MessageId) {
    let envelope = Envelope::parse(datagram).expect("encode_request writes an envelope");
    let sum = checksum(&id.0, envelope.payload);
    let (head, tail) = (2, datagram.len() - size_of::<u64>());
    datagram[head..head + MESSAGE_ID_BYTES].copy_from_slice(&id.0);
    datagram[tail..].copy_from_slice(&sum.to_le_bytes());
}

/// Decodes a response of this layout.
///
/// # Errors
/// [`ResponseError`] when there is no envelope, its checksum is wrong, or the payload ends early.
pub fn decode_response(datagram: &[u8]) -> Result<Response<'_>, ResponseError> {
    let (envelope, _) = Envelope::parse_loosely(datagram).ok_or(ResponseError::Malformed)?;
    if !envelope.is_intact() {
        return Err(ResponseError::Checksum);
    }
    let mut code = 0u32;
    let mut value = None;
    let mut version = None;
    let mut response = Response::of_status(envelope.id, Status::Success);
    let mut fields = Fields(envelope.payload);
    while let Some(field) = fields.next().ok_or(ResponseError::Malformed)? {
        match field {
            (1, Field::Varint(number)) => code = number as u32,
            (2, Field::Bytes(bytes)) => value = Some(bytes),
            (3, Field::Varint(number)) => response.pid = Some(number as i32),
            (4, Field::Varint(number)) => version = Some(number as i32),
            (5, Field::Varint(number)) => response.overload_wait_ms = Some(number as i32),
            (6, Field::Varint(number)) => response.membership_count = Some(number as i32),
            (1..=6, _) => return Err(ResponseError::Malformed),
            _ => {}
        }
    }
    response.status = Status::from_code(code, Format::Protobuf);
    if value.is_some() || version.is_some() {
        let bytes = value.unwrap_or_default();
        response.value = Some(Value { bytes, version: version.unwrap_or_default() });
    }
    Ok(response)
}

enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

/// Walks the fields of one message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The next field; `Some(None)` at the end, `None` when the bytes are no message.
    #[allow(clippy::option_option)]
    fn next(&mut self) -> Option<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.varint()?;
        if !FIELD_TAGS.contains(&tag) {
            return None;
        }
        let field = match tag & 7 {
            WIRE_VARINT => Field::Varint(self.varint()?),
            WIRE_FIXED64 => Field::Fixed64(u64::from_le_bytes(*self.take()?)),
            WIRE_BYTES => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            WIRE_FIXED32 => {
                self.take::<4>()?;
                Field::Fixed32
            }
            _ => return None,
        };
        Some(Some((tag >> 3, field)))
    }

    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(chunk)
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let (&first, rest) = self.0.split_first()?;
        if first < 0x80 {
            self.0 = rest;
            return Some(u64::from(first));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for (index, &byte) in self.0.iter().enumerate().take(VARINT_BYTES_MAX) {
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.0 = &self.0[index + 1..];
                return Some(number);
            }
        }
        None
    }
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while 0x80 <= number {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Bytes of a number as a varint: seven bits each.
fn varint_bytes(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes of a number and its tag, which takes one for all fields of the course.
fn number_bytes(number: u64) -> usize {
    1 + varint_bytes(number)
}

fn i32_bytes(number: i32) -> usize {
    number_bytes(i64::from(number) as u64)
}

/// Bytes of a field of this many bytes, with tag and length.
fn bytes_bytes(length: usize) -> usize {
    1 + varint_bytes(length as u64) + length
}

fn push_number(out: &mut Vec<u8>, field: u64, number: u64) {
    push_varint(out, field << 3 | WIRE_VARINT);
    push_varint(out, number);
}

/// Negative numbers take ten bytes, as every protobuf library writes them.
fn push_i32(out: &mut Vec<u8>, field: u64, number: i32) {
    push_number(out, field, i64::from(number) as u64);
}

fn push_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    push_varint(out, field << 3 | WIRE_BYTES);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
