//! How sets and contexts stand in memory and on the wire.

use super::{CausalContext, DOT_BYTES, Dot, SET_BYTES_MAX, Siblings, WRITERS_MAX, Writers, Written};
use std::collections::{BTreeMap, BTreeSet};
use violet_client::wire::VALUE_BYTES_MAX;

const LAYOUT: u8 = 2;
pub(super) const CONTEXT_OF_READ: u8 = 1;
const CONTEXT_OF_WRITE: u8 = 2;

impl CausalContext {
    /// Reads what [`Self::encode`] wrote; no bytes are the context that has seen nothing. `None` for
    /// anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let own = match bytes.first() {
            None => return Some(Self::default()),
            Some(_) => match reader.byte()? {
                CONTEXT_OF_READ => None,
                CONTEXT_OF_WRITE => Some(reader.dot()?),
                _ => return None,
            },
        };
        let writers = reader.0.len() / DOT_BYTES;
        let seen: Vec<Dot> = (0..writers).map(|_| reader.dot()).collect::<Option<_>>()?;
        let is_ordered =
            writers <= WRITERS_MAX && seen.is_sorted_by(|left, right| left.writer < right.writer);
        let read = Self { seen, own };
        let says_something = own.map_or(0 < writers, |own| !read.has_seen(own));
        (is_ordered && says_something && reader.0.is_empty()).then_some(read)
    }

    /// Appends the bytes to hand to a client, at most [`CONTEXT_BYTES_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.own {
            Some(own) => {
                out.push(CONTEXT_OF_WRITE);
                push_dot(own, out);
            }
            None if self.seen.is_empty() => return,
            None => out.push(CONTEXT_OF_READ),
        }
        self.seen.iter().for_each(|&dot| push_dot(dot, out));
    }
}

impl Siblings {
    /// Appends the set as at most [`SET_BYTES_MAX`] bytes. Equal sets give equal bytes:
    ///
    /// ```text
    /// layout(1)  gone_before(8)
    ///            count(1) { writer(8) counter(8) used_at(8) }     seen, by writer
    ///            count(1) { writer(8) counter(8) }                superseded, by writer and counter
    ///            count(1) { place of the writer in seen(1) counter(8) time(8) client_version(4)
    ///                       length(2) value(length) }   by writer and counter
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(LAYOUT);
        out.extend_from_slice(&self.gone_before.to_le_bytes());
        out.push(self.seen.0.len() as u8);
        for (dot, seen) in self.seen.dots().zip(self.seen.0.values()) {
            push_dot(dot, out);
            out.extend_from_slice(&seen.used_at.to_le_bytes());
        }
        out.push(self.superseded.len() as u8);
        self.superseded.iter().for_each(|&dot| push_dot(dot, out));
        out.push(self.values.len() as u8);
        for (dot, written) in &self.values {
            let place = self.seen.0.keys().position(|&writer| writer == dot.writer);
            out.push(place.expect("every value's dot is among the events seen") as u8);
            out.extend_from_slice(&dot.counter.to_le_bytes());
            out.extend_from_slice(&written.time.to_le_bytes());
            out.extend_from_slice(&written.client_version.to_le_bytes());
            out.extend_from_slice(&(written.bytes.len() as u16).to_le_bytes());
            out.extend_from_slice(&written.bytes);
        }
    }

    /// Reads what [`Self::encode`] wrote, to the last byte; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if SET_BYTES_MAX < bytes.len() || reader.byte()? != LAYOUT {
            return None;
        }
        let gone_before = reader.number()?;
        let seen = reader.writers()?;
        let superseded = reader.superseded(&seen)?;
        let values = reader.values(&seen)?;
        let mut read = Self { seen, superseded, values, gone_before };
        let sizes = read.sizes();
        // A set that was written keeps the limits already.
        read.bound();
        (reader.0.is_empty() && read.sizes() == sizes).then_some(read)
    }

    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.seen.0.len(), self.superseded.len(), self.values.len()]
    }
}

fn push_dot(dot: Dot, out: &mut Vec<u8>) {
    out.extend_from_slice(&dot.writer.to_le_bytes());
    out.extend_from_slice(&dot.counter.to_le_bytes());
}

/// Walks an encoding.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn dot(&mut self) -> Option<Dot> {
        Some(Dot { writer: self.number()?, counter: self.number()? })
    }

    fn writers(&mut self) -> Option<Writers> {
        let mut writers = Writers::default();
        for _ in 0..self.byte()? {
            let (dot, used_at) = (self.dot()?, self.number()?);
            let is_next = writers.0.last_key_value().is_none_or(|(&last, _)| last < dot.writer);
            is_next.then(|| writers.raise(dot, used_at))?;
        }
        Some(writers)
    }

    fn superseded(&mut self, seen: &Writers) -> Option<BTreeSet<Dot>> {
        let mut superseded = BTreeSet::new();
        for _ in 0..self.byte()? {
            let dot = self.dot()?;
            let is_next = superseded.last().is_none_or(|&last| last < dot);
            (is_next && !seen.covers(dot)).then(|| superseded.insert(dot))?;
        }
        Some(superseded)
    }

    fn values(&mut self, seen: &Writers) -> Option<BTreeMap<Dot, Written>> {
        let writers: Vec<u64> = seen.0.keys().copied().collect();
        let mut values = BTreeMap::new();
        for _ in 0..self.byte()? {
            let writer = *writers.get(usize::from(self.byte()?))?;
            let dot = Dot { writer, counter: self.number()? };
            let is_next = values.last_key_value().is_none_or(|(&last, _)| last < dot);
            let written = self.written()?;
            (is_next && seen.covers(dot)).then(|| values.insert(dot, written))?;
        }
        Some(values)
    }

    fn written(&mut self) -> Option<Written> {
        let time = self.number()?;
        let client_version = i32::from_le_bytes(self.array()?);
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        (length <= VALUE_BYTES_MAX).then(|| Written { time, client_version, bytes: bytes.into() })
    }
}
