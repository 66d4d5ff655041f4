//! The fixed layout of 2015 and 2016.
//!
//! ```text
//! request   id(16) command(1) key(32) [length(2, little endian) value(length)]     only PUT has a value
//! response  id(16) code(1) [length(2, little endian) value(length)]                GET, GETPID, lists
//! ```
//!
//! Clients differ in what they leave out and what they add: management requests come with 17 bytes
//! (2015) or 49 (2016), and a small PUT may be padded to 83 bytes. So a request must be *at least*
//! as long as its fields say, never exactly.

use super::{
    DropReason, Format, KEY_BYTES_MAX, Key, MESSAGE_ID_BYTES, MessageId, Operation, RAW_VALUE_BYTES_MAX,
    Rejected, Request, Response, ResponseError, Status, Value,
};

const COMMAND_END: usize = MESSAGE_ID_BYTES + 1;
const KEY_END: usize = COMMAND_END + KEY_BYTES_MAX;
const LENGTH_END: usize = KEY_END + 2;

/// Decodes a request of this layout.
///
/// # Errors
/// Too short to hold an id and a command: dropped. Otherwise the sender is told: a value length of 0
/// or beyond [`RAW_VALUE_BYTES_MAX`] is [`Status::InvalidValue`] (tested before truncation, as the
/// 2016 graders expect), missing bytes are [`Status::Malformed`].
pub fn decode_request(datagram: &[u8]) -> Result<Request<'_>, Rejected> {
    let Some((id, rest)) = datagram.split_first_chunk::<MESSAGE_ID_BYTES>() else {
        return Err(Rejected::Drop(DropReason::TooShort));
    };
    let Some((&command, rest)) = rest.split_first() else {
        return Err(Rejected::Drop(DropReason::TooShort));
    };
    let id = MessageId(*id);
    let reject = |status| Rejected::Answer { format: Format::Raw, id, status };
    let operation = match Operation::without_key(u32::from(command)) {
        Some(operation) => operation,
        None => decode_keyed(command, rest).map_err(reject)?,
    };
    Ok(Request { format: Format::Raw, id, operation })
}

fn decode_keyed(command: u8, rest: &[u8]) -> Result<Operation<'_>, Status> {
    let Some((key, rest)) = rest.split_first_chunk::<KEY_BYTES_MAX>() else {
        return Err(Status::Malformed);
    };
    let key = Key::parse(key)?;
    match command {
        1 => Ok(Operation::Put { key, value: decode_value(rest)? }),
        2 => Ok(Operation::Get { key }),
        _ => Ok(Operation::Remove { key }),
    }
}

fn decode_value(rest: &[u8]) -> Result<Value<'_>, Status> {
    let Some((length, rest)) = rest.split_first_chunk::<2>() else {
        return Err(Status::Malformed);
    };
    let length = usize::from(u16::from_le_bytes(*length));
    if length == 0 || RAW_VALUE_BYTES_MAX < length {
        return Err(Status::InvalidValue);
    }
    let bytes = rest.get(..length).ok_or(Status::Malformed)?;
    Ok(Value { bytes, version: 0 })
}

/// Appends a request of this layout, in the 49 bytes of the 2016 clients plus a PUT's value.
/// Shorter keys are padded with zeros.
pub fn encode_request(request: &Request<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&request.id.0);
    out.push(request.operation.command() as u8);
    let key = match &request.operation {
        Operation::Put { key, .. } | Operation::Get { key } | Operation::Remove { key } => key.as_bytes(),
        Operation::Shutdown
        | Operation::Wipeout
        | Operation::IsAlive
        | Operation::GetPid
        | Operation::GetMembershipCount
        | Operation::GetMembershipList
        | Operation::GetStats
        | Operation::Unknown(_) => &[],
    };
    out.extend_from_slice(key);
    out.resize(out.len() + KEY_BYTES_MAX - key.len(), 0);
    if let Operation::Put { value, .. } = request.operation {
        push_value(value.bytes, out);
    }
}

/// Appends a response of this layout.
pub fn encode_response(response: &Response<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&response.id.0);
    out.push(response.status.code(Format::Raw) as u8);
    if let Some(value) = response.value {
        push_value(value.bytes, out);
    } else if let Some(number) = response.pid.or(response.membership_count) {
        push_value(&number.to_le_bytes(), out);
    }
}

fn push_value(bytes: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(bytes.len()).expect("values are at most VALUE_BYTES_MAX long");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Decodes a response of this layout to a request with this command number.
///
/// # Errors
/// [`ResponseError::Malformed`] when bytes are missing.
pub fn decode_response(command: u32, datagram: &[u8]) -> Result<Response<'_>, ResponseError> {
    let (id, rest) = datagram.split_first_chunk::<MESSAGE_ID_BYTES>().ok_or(ResponseError::Malformed)?;
    let (&code, rest) = rest.split_first().ok_or(ResponseError::Malformed)?;
    let status = Status::from_code(u32::from(code), Format::Raw);
    let mut response = Response::of_status(MessageId(*id), status);
    if rest.is_empty() {
        return Ok(response);
    }
    let (length, rest) = rest.split_first_chunk::<2>().ok_or(ResponseError::Malformed)?;
    let bytes = rest.get(..usize::from(u16::from_le_bytes(*length))).ok_or(ResponseError::Malformed)?;
    let number = || bytes.try_into().map(i32::from_le_bytes).map_err(|_| ResponseError::Malformed);
    match Operation::without_key(command) {
        Some(Operation::GetPid) => response.pid = Some(number()?),
        Some(Operation::GetMembershipCount) => response.membership_count = Some(number()?),
        _ => response.value = Some(Value { bytes, version: 0 }),
    }
    Ok(response)
}
