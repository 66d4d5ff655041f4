//! What the two private commands for concurrent values carry in their value fields, the same in both
//! layouts.
//!
//! ```text
//! PutWithContext  request   context_length(2) context value(the rest)
//! PutWithContext  response  as GetSiblings, with the new context and no values
//! GetSiblings     response  context_length(2) context count(1) count × { length(2) version(4) value(length) }
//! ```
//!
//! All numbers are little endian. A context is opaque to clients: a server hands it out with the values
//! that it stands for, and a client that hands it back says "I have seen those". An empty context has
//! seen nothing. The request's value is what is left of its field, so it may be empty in the raw layout
//! too; its version travels in the envelope and is 0 in the raw layout.
//!
//! Deliberately not here: what a context says; only servers know.

use super::{Status, Value};

/// Longest context. Servers bound what they remember of a key so that it always fits.
pub const CONTEXT_BYTES_MAX: usize = 1_000;
/// Longest value field of a PutWithContext: the context, its length of two bytes, and the value.
pub const PUT_WITH_CONTEXT_BYTES_MAX: usize = 10_000;
/// Most values in a response to GetSiblings. What a server keeps beyond them, it forgets, oldest first.
pub const SIBLINGS_MAX: usize = 16;
/// Longest value field of a response to GetSiblings: the raw layout can say 65,535, and a datagram also
/// has to hold the envelope.
pub const SIBLINGS_BYTES_MAX: usize = 60_000;

const LENGTH_BYTES: usize = size_of::<u16>();
const _: () = assert!(CONTEXT_BYTES_MAX + LENGTH_BYTES < PUT_WITH_CONTEXT_BYTES_MAX);
const _: () = assert!(SIBLINGS_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(SIBLINGS_BYTES_MAX + 1_024 <= super::DATAGRAM_BYTES_MAX);

/// What a client has seen of a key, in a server's words; at most [`CONTEXT_BYTES_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Context<'a>(&'a [u8]);

impl<'a> Context<'a> {
    /// Takes a context as a server gave it.
    ///
    /// # Errors
    /// [`Status::InvalidValue`] when it is longer than [`CONTEXT_BYTES_MAX`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Status> {
        if CONTEXT_BYTES_MAX < bytes.len() {
            return Err(Status::InvalidValue);
        }
        Ok(Self(bytes))
    }

    /// The context's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    fn push(&self, out: &mut Vec<u8>) {
        let length = u16::try_from(self.0.len()).expect("a context is bounded far below 65,536 bytes");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(self.0);
    }

    fn take(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Status> {
        let (context, rest) = take_counted(bytes).ok_or(Status::Malformed)?;
        Ok((Self::parse(context)?, rest))
    }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The concurrent values of a key, and the context that has seen them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Siblings<'a> {
    /// What to hand back with the value that is to replace these.
    pub context: Context<'a>,
    /// The values, at most [`SIBLINGS_MAX`].
    pub values: Vec<Value<'a>>,
}

impl<'a> Siblings<'a> {
    /// Appends the value field that says this.
    ///
    /// # Errors
    /// [`Status::InvalidValue`] when it is more than [`SIBLINGS_MAX`] values or [`SIBLINGS_BYTES_MAX`]
    /// bytes; `out` is then as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Status> {
        if SIBLINGS_MAX < self.values.len() || SIBLINGS_BYTES_MAX < self.encoded_bytes() {
            return Err(Status::InvalidValue);
        }
        self.context.push(out);
        out.push(self.values.len() as u8);
        for value in &self.values {
            let length = u16::try_from(value.bytes.len()).expect("all values together are bounded");
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(&value.version.to_le_bytes());
            out.extend_from_slice(value.bytes);
        }
        Ok(())
    }

    /// How long the value field is.
    fn encoded_bytes(&self) -> usize {
        let values = self.values.iter().map(|value| LENGTH_BYTES + size_of::<i32>() + value.bytes.len());
        LENGTH_BYTES + self.context.0.len() + 1 + values.sum::<usize>()
    }

    /// Reads a value field to its end.
    ///
    /// # Errors
    /// [`Status::InvalidValue`] beyond a limit, [`Status::Malformed`] when bytes are missing or left over.
    pub fn decode(field: &'a [u8]) -> Result<Self, Status> {
        if SIBLINGS_BYTES_MAX < field.len() {
            return Err(Status::InvalidValue);
        }
        let (context, rest) = Context::take(field)?;
        let (&count, mut rest) = rest.split_first().ok_or(Status::Malformed)?;
        let count = usize::from(count);
        if SIBLINGS_MAX < count {
            return Err(Status::InvalidValue);
        }
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let (value, behind) = take_value(rest).ok_or(Status::Malformed)?;
            values.push(value);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(Status::Malformed);
        }
        Ok(Self { context, values })
    }
}

/// Appends the value field of a PutWithContext. Its length is not tested here, as with a PUT, so that a
/// test client can ask too much; see [`put_with_context_bytes`].
pub(super) fn push_with_context(context: &Context<'_>, value: &[u8], out: &mut Vec<u8>) {
    context.push(out);
    out.extend_from_slice(value);
}

/// How long the value field of a PutWithContext is; [`PUT_WITH_CONTEXT_BYTES_MAX`] is allowed.
#[must_use]
pub fn put_with_context_bytes(context: &Context<'_>, value: &[u8]) -> usize {
    LENGTH_BYTES + context.0.len() + value.len()
}

/// Reads the value field of a PutWithContext.
pub(super) fn split_context(field: &[u8]) -> Result<(Context<'_>, &[u8]), Status> {
    if PUT_WITH_CONTEXT_BYTES_MAX < field.len() {
        return Err(Status::InvalidValue);
    }
    Context::take(field)
}

fn take_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

fn take_value(bytes: &[u8]) -> Option<(Value<'_>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (version, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((Value { bytes, version: i32::from_le_bytes(*version) }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn siblings<'a>(context: &'a [u8], values: &[&'a [u8]]) -> Siblings<'a> {
        let versions = -1..;
        let values = values.iter().zip(versions).map(|(bytes, version)| Value { bytes, version }).collect();
        Siblings { context: Context::parse(context).unwrap(), values }
    }

    #[test]
    fn what_was_written_is_read() {
        let long = [7; 9_000];
        for (context, values) in [
            (&b""[..], &[][..]),
            (b"context", &[]),
            (&[9; CONTEXT_BYTES_MAX], &[&b""[..], b"a", &long]),
            (b"", &[&b"x"[..]; SIBLINGS_MAX]),
        ] {
            let siblings = siblings(context, values);
            let mut field = b"kept".to_vec();
            siblings.encode(&mut field).unwrap();
            assert_eq!(field.len(), 4 + siblings.encoded_bytes());
            assert_eq!(Siblings::decode(&field[4..]), Ok(siblings));
            for end in 4..field.len() {
                assert_eq!(Siblings::decode(&field[4..end]), Err(Status::Malformed), "cut at {end}");
            }
            field.push(0);
            assert_eq!(Siblings::decode(&field[4..]), Err(Status::Malformed));
        }
    }

    #[test]
    fn limits_hold_for_writers_and_readers() {
        assert_eq!(Context::parse(&[0; CONTEXT_BYTES_MAX + 1]), Err(Status::InvalidValue));
        let mut out = Vec::new();
        let many = siblings(b"", &[&b"x"[..]; SIBLINGS_MAX + 1]);
        assert_eq!(many.encode(&mut out), Err(Status::InvalidValue));
        // Two bytes and a count, six bytes for each value: six of 9,993 fill it but for three bytes.
        let (long, rest) = ([1; 9_993], [2; 4]);
        let mut full = siblings(b"", &[&long[..]; 6]);
        assert_eq!(full.encoded_bytes(), SIBLINGS_BYTES_MAX - 3);
        full.context = Context::parse(&rest[..3]).unwrap();
        full.encode(&mut out).unwrap();
        assert!(Siblings::decode(&out).is_ok());
        full.context = Context::parse(&rest).unwrap();
        let written = out.len();
        assert_eq!(full.encode(&mut out), Err(Status::InvalidValue));
        assert_eq!(out.len(), written);
        assert_eq!(Siblings::decode(&[0; SIBLINGS_BYTES_MAX + 1]), Err(Status::InvalidValue));
        assert_eq!(Siblings::decode(&[0, 0, SIBLINGS_MAX as u8 + 1]), Err(Status::InvalidValue));
        assert_eq!(Siblings::decode(&[0xe9, 0x03]), Err(Status::Malformed));
        let mut long_context = vec![0xe9, 0x03];
        long_context.resize(2 + CONTEXT_BYTES_MAX + 2, 0);
        assert_eq!(Siblings::decode(&long_context), Err(Status::InvalidValue));
    }

    #[test]
    fn a_put_splits_into_context_and_value() {
        let context = Context::parse(b"ctx").unwrap();
        let mut field = Vec::new();
        push_with_context(&context, b"value", &mut field);
        assert_eq!(field, b"\x03\0ctxvalue");
        assert_eq!(field.len(), put_with_context_bytes(&context, b"value"));
        assert_eq!(split_context(&field), Ok((context, &b"value"[..])));
        assert_eq!(split_context(b"\x03\0ctx"), Ok((context, &b""[..])));
        assert_eq!(split_context(b"\x03\0ct"), Err(Status::Malformed));
        assert_eq!(split_context(b"\0"), Err(Status::Malformed));
        assert!(split_context(&[0; PUT_WITH_CONTEXT_BYTES_MAX]).is_ok());
        assert_eq!(split_context(&[0; PUT_WITH_CONTEXT_BYTES_MAX + 1]), Err(Status::InvalidValue));
        let mut long_context = vec![0xe9, 0x03];
        long_context.resize(2 + CONTEXT_BYTES_MAX + 1, 0);
        assert_eq!(split_context(&long_context), Err(Status::InvalidValue));
    }
}
