//! The fixed layout of 2015 and 2016.
//!
//! ```text
//! request   id(16) command(1) key(32) [length(2, little endian) value(length)]     PUT, PutWithContext
//! response  id(16) code(1) [length(2, little endian) value(length)]                GET, GETPID, lists ...
//! ```
//!
//! Clients differ in what they leave out and what they add: management requests come with 17 bytes
//! (2015) or 49 (2016), and a small PUT may be padded to 83 bytes. So a request must be *at least*
//! as long as its fields say, never exactly.
//!
//! Deliberately not here: telling this layout from the other (see [`super::decode_request`]).

use super::{
    DropReason, Format, GET_PLACEMENT_COMMAND, GET_SIBLINGS_COMMAND, KEY_BYTES_MAX, Key, LOCATE_COMMAND,
    MESSAGE_ID_BYTES, MessageId, Operation, PUT_WITH_CONTEXT_COMMAND, RAW_VALUE_BYTES_MAX, Rejected, Request,
    Response, ResponseError, Status, Value, placement,
    siblings::{self, PUT_WITH_CONTEXT_BYTES_MAX},
};

/// The commands with a key, or something in its place, whose successful replies carry a value.
const VALUED_COMMANDS: [u32; 5] =
    [2, PUT_WITH_CONTEXT_COMMAND, GET_SIBLINGS_COMMAND, LOCATE_COMMAND, GET_PLACEMENT_COMMAND];

/// Decodes a request of this layout.
///
/// # Errors
/// Too short to hold an id and a command: dropped. Otherwise the sender is told: a value length of 0
/// or beyond its limit is [`Status::InvalidValue`] (tested before truncation, as the
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
    if u32::from(command) == GET_PLACEMENT_COMMAND {
        return Ok(Operation::GetPlacement { offset: placement::offset_of(key)? });
    }
    let key = Key::parse(key)?;
    match u32::from(command) {
        1 => {
            let bytes = decode_value(rest, RAW_VALUE_BYTES_MAX)?;
            Ok(Operation::Put { key, value: Value { bytes, version: 0 } })
        }
        2 => Ok(Operation::Get { key }),
        PUT_WITH_CONTEXT_COMMAND => {
            let (context, bytes) = siblings::split_context(decode_value(rest, PUT_WITH_CONTEXT_BYTES_MAX)?)?;
            Ok(Operation::PutWithContext { key, context, value: Value { bytes, version: 0 } })
        }
        GET_SIBLINGS_COMMAND => Ok(Operation::GetSiblings { key }),
        LOCATE_COMMAND => Ok(Operation::Locate { key }),
        _ => Ok(Operation::Remove { key }),
    }
}

fn decode_value(rest: &[u8], bytes_max: usize) -> Result<&[u8], Status> {
    let Some((length, rest)) = rest.split_first_chunk::<2>() else {
        return Err(Status::Malformed);
    };
    let length = usize::from(u16::from_le_bytes(*length));
    if length == 0 || bytes_max < length {
        return Err(Status::InvalidValue);
    }
    rest.get(..length).ok_or(Status::Malformed)
}

/// Whether a datagram could be a SHUTDOWN, WIPEOUT or Leave of this layout but carries more than a clean
/// one does: real clients send these bare (17 bytes, 2015) or with an all-zero key (49 bytes, 2016).
///
/// A server that also accepts envelopes uses this to keep the commands that cannot be undone away
/// from damaged envelopes and from garbage, in which one byte in 85 at that place means one of them.
#[must_use]
pub fn is_doubtful_destruction(datagram: &[u8]) -> bool {
    match datagram.get(MESSAGE_ID_BYTES..) {
        Some([4 | 5 | 0x24, rest @ ..]) => rest.iter().any(|&byte| byte != 0),
        _ => false,
    }
}

/// Appends a request of this layout, in the 49 bytes of the 2016 clients plus a PUT's value.
/// Shorter keys are padded with zeros; a command that does not fit its byte becomes 255, which nobody
/// knows, rather than one of the low numbers that everybody obeys.
///
/// # Panics
/// When the value is longer than its length field can say, which is longer than any datagram.
pub fn encode_request(request: &Request<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&request.id.0);
    out.push(u8::try_from(request.operation.command()).unwrap_or(u8::MAX));
    let offset = match request.operation {
        Operation::GetPlacement { offset } => offset.to_le_bytes(),
        _ => [0; 4],
    };
    let key = request.operation.key().map_or(&offset[..], Key::as_bytes);
    out.extend_from_slice(key);
    out.resize(out.len() + KEY_BYTES_MAX - key.len(), 0);
    if let Operation::Put { value, .. } = request.operation {
        push_value(value.bytes, out);
    } else if let Operation::PutWithContext { context, value, .. } = request.operation {
        push_length(siblings::put_with_context_bytes(&context, value.bytes), out);
        siblings::push_with_context(&context, value.bytes, out);
    }
}

/// Appends a response of this layout. Only a success carries anything behind its code, and there is
/// room for one thing: the value, else the process id, else the count. A code that does not fit its
/// byte becomes 255.
///
/// # Panics
/// When the value is longer than its length field can say, which is longer than any datagram.
pub fn encode_response(response: &Response<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&response.id.0);
    out.push(u8::try_from(response.status.code(Format::Raw)).unwrap_or(u8::MAX));
    if response.status != Status::Success {
        return;
    }
    if let Some(value) = response.value {
        push_value(value.bytes, out);
    } else if let Some(number) = response.pid.or(response.membership_count) {
        push_value(&number.to_le_bytes(), out);
    }
}

fn push_value(bytes: &[u8], out: &mut Vec<u8>) {
    push_length(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn push_length(length: usize, out: &mut Vec<u8>) {
    let length = u16::try_from(length).expect("a value fits a datagram, so its length fits 16 bits");
    out.extend_from_slice(&length.to_le_bytes());
}

/// Decodes a response of this layout to a request with this command number. What follows the code is
/// read only where the layout puts something there (a success of a command that returns anything);
/// elsewhere it is padding.
///
/// # Errors
/// [`ResponseError::Malformed`] when bytes are missing, or a number is not four bytes long.
pub fn decode_response(command: u32, datagram: &[u8]) -> Result<Response<'_>, ResponseError> {
    let (id, rest) = datagram.split_first_chunk::<MESSAGE_ID_BYTES>().ok_or(ResponseError::Malformed)?;
    let (&code, rest) = rest.split_first().ok_or(ResponseError::Malformed)?;
    let status = Status::from_code(u32::from(code), Format::Raw);
    let mut response = Response::of_status(MessageId(*id), status);
    if status != Status::Success || rest.is_empty() {
        return Ok(response);
    }
    let bytes = || {
        let (length, rest) = rest.split_first_chunk::<2>()?;
        rest.get(..usize::from(u16::from_le_bytes(*length)))
    };
    let number = || bytes().and_then(|bytes| bytes.try_into().ok()).map(i32::from_le_bytes);
    match Operation::without_key(command) {
        Some(Operation::GetPid) => response.pid = Some(number().ok_or(ResponseError::Malformed)?),
        Some(Operation::GetMembershipCount) => {
            response.membership_count = Some(number().ok_or(ResponseError::Malformed)?);
        }
        Some(Operation::Shutdown | Operation::Wipeout | Operation::IsAlive | Operation::Leave) => {}
        None if !VALUED_COMMANDS.contains(&command) => {}
        _ => {
            let bytes = bytes().ok_or(ResponseError::Malformed)?;
            response.value = Some(Value { bytes, version: 0 });
        }
    }
    Ok(response)
}

/// Puts another id into a request that [`encode_request`] wrote.
pub(super) fn replace_id(datagram: &mut [u8], id: MessageId) {
    datagram[..MESSAGE_ID_BYTES].copy_from_slice(&id.0);
}
