//! Records as chains of blocks in the chunks of one shard.
//!
//! A block is [`BLOCK_BYTES`] long: the number of the next block, then a part of the record's stream,
//! which is header, key and value. The header and the whole key are in the first block. What is free is
//! linked in the same way.

use crate::ids::Version;
use crate::storage::chunks::{CHUNK_BYTES, Chunk, Chunks};
use crate::storage::siblings::SET_BYTES_MAX;
use crate::storage::{Meta, Record};
use violet_client::wire::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use violet_client::{Key, Value};
use xxhash_rust::xxh3::xxh3_64;

/// End of a chain.
pub(super) const NIL: u32 = u32::MAX;
/// Part of a shard's memory that new keys may not take: overwrites and removals must find room.
const RESERVE_SHARE: usize = 64;
const BLOCK_BYTES: usize = 128;
const LINK_BYTES: usize = 4;
const HEADER_BYTES: usize = 28;
const CHUNK_BLOCKS: usize = CHUNK_BYTES / BLOCK_BYTES;

const _: () = assert!(LINK_BYTES + HEADER_BYTES + KEY_BYTES_MAX <= BLOCK_BYTES, "a key fits the first block");
const _: () = assert!(VALUE_BYTES_MAX <= u16::MAX as usize, "a length fits its header field");
const _: () = assert!(SET_BYTES_MAX <= u16::MAX as usize, "and so does that of a set");

/// The flags of a header.
const REMOVED: u8 = 1;
const SET: u8 = 2;

type Block = [u8; BLOCK_BYTES];

/// The header of a record, as it stands in its first block.
#[derive(Clone, Copy)]
pub(super) struct Header {
    key_bytes: u8,
    value_bytes: u16,
    client_version: i32,
    pub(super) removed: bool,
    /// As [`Meta::contents`].
    contents: u64,
    pub(super) version: Version,
}

impl Header {
    pub(super) fn of(key: &Key, record: &Record<'_>) -> Self {
        let value = record.value.unwrap_or_default();
        Self {
            key_bytes: key.as_bytes().len() as u8,
            value_bytes: value.bytes.len() as u16,
            client_version: value.version,
            removed: record.value.is_none(),
            contents: if record.is_set { xxh3_64(value.bytes).max(1) } else { 0 },
            version: record.version,
        }
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.key_bytes;
        bytes[1] = if self.removed { REMOVED } else { 0 } | if self.is_set() { SET } else { 0 };
        bytes[2..4].copy_from_slice(&self.value_bytes.to_le_bytes());
        if self.is_set() {
            // Its values have numbers of their own.
            let contents = self.contents.to_le_bytes();
            bytes[4..8].copy_from_slice(&contents[..4]);
            bytes[24..28].copy_from_slice(&contents[4..]);
        } else {
            bytes[4..8].copy_from_slice(&self.client_version.to_le_bytes());
        }
        bytes[8..16].copy_from_slice(&self.version.time.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.version.writer.to_le_bytes());
        bytes
    }

    fn decode(block: &Block) -> Self {
        let bytes = &block[LINK_BYTES..LINK_BYTES + HEADER_BYTES];
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes are there"));
        let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("4 bytes are there"));
        let is_set = bytes[1] & SET != 0;
        Self {
            key_bytes: bytes[0],
            value_bytes: u16::from_le_bytes([bytes[2], bytes[3]]),
            client_version: if is_set { 0 } else { u32_at(4) as i32 },
            removed: bytes[1] & REMOVED != 0,
            contents: if is_set { u64::from(u32_at(24)) << 32 | u64::from(u32_at(4)) } else { 0 },
            version: Version { time: u64_at(8), writer: u64_at(16) },
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.contents != 0
    }

    /// Blocks that the record takes.
    pub(super) fn blocks(&self) -> usize {
        let stream = HEADER_BYTES + usize::from(self.key_bytes) + usize::from(self.value_bytes);
        stream.div_ceil(BLOCK_BYTES - LINK_BYTES)
    }

    pub(super) fn payload_bytes(&self) -> usize {
        usize::from(self.key_bytes) + usize::from(self.value_bytes)
    }

    pub(super) fn meta(&self) -> Meta {
        let Self { version, removed, client_version, contents, .. } = *self;
        Meta { version, removed, client_version, contents }
    }
}

/// The blocks of a shard.
#[derive(Debug)]
pub(super) struct Blocks {
    chunks: Vec<Chunk>,
    /// Blocks that were used before, linked.
    free: u32,
    /// Blocks of the chunks that have been used at all; the others are untouched.
    used_count: u32,
    /// Free blocks of both kinds.
    free_count: usize,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: NIL, used_count: 0, free_count: 0 }
    }

    /// Bytes of the chunks.
    pub(super) fn held_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES
    }

    fn block(&self, number: u32) -> &Block {
        let at = number as usize % CHUNK_BLOCKS * BLOCK_BYTES;
        let chunk = &self.chunks[number as usize / CHUNK_BLOCKS];
        chunk[at..].first_chunk().expect("a chunk is a whole number of blocks")
    }

    fn block_mut(&mut self, number: u32) -> &mut Block {
        let at = number as usize % CHUNK_BLOCKS * BLOCK_BYTES;
        let chunk = &mut self.chunks[number as usize / CHUNK_BLOCKS];
        chunk[at..].first_chunk_mut().expect("a chunk is a whole number of blocks")
    }

    fn next(&self, number: u32) -> u32 {
        u32::from_le_bytes(*self.block(number).first_chunk().expect("a block has a link"))
    }

    fn link(&mut self, number: u32, next: u32) {
        self.block_mut(number)[..LINK_BYTES].copy_from_slice(&next.to_le_bytes());
    }

    /// The header of the record that starts here.
    pub(super) fn header(&self, head: u32) -> Header {
        Header::decode(self.block(head))
    }

    /// The key's bytes, if a record starts here; otherwise whatever stands in their place.
    pub(super) fn key_bytes(&self, head: u32) -> &[u8] {
        let block = self.block(head);
        let count = usize::from(block[LINK_BYTES]).min(KEY_BYTES_MAX);
        &block[LINK_BYTES + HEADER_BYTES..][..count]
    }

    /// The key of the record that starts here.
    pub(super) fn key(&self, head: u32) -> Key {
        Key::parse(self.key_bytes(head)).expect("a record was written with a valid key")
    }

    /// Makes sure that `blocks` are free, with another chunk if there is one. What is not urgent
    /// leaves the shard's reserve alone.
    pub(super) fn make_room(&mut self, blocks: usize, chunks: &Chunks, is_urgent: bool) -> bool {
        let reserve = if is_urgent { 0 } else { self.chunks.len() * CHUNK_BLOCKS / RESERVE_SHARE };
        if blocks + reserve <= self.free_count {
            return true;
        }
        if let Some(chunk) = chunks.take() {
            self.chunks.push(chunk);
            self.free_count += CHUNK_BLOCKS;
        }
        blocks + reserve <= self.free_count
    }

    /// Writes a record over the blocks of `reuse`, then over free ones, and frees what is left over.
    /// There must be room. Returns the first block, which is `reuse` unless that is [`NIL`].
    pub(super) fn write(&mut self, mut reuse: u32, header: &Header, key: &Key, value: Value<'_>) -> u32 {
        let encoded = header.encode();
        let mut parts = [&encoded[..], key.as_bytes(), value.bytes];
        let mut head = NIL;
        let mut last = NIL;
        while parts.iter().any(|part| !part.is_empty()) {
            let number = self.take(&mut reuse);
            let block = self.block_mut(number);
            let mut at = LINK_BYTES;
            for part in &mut parts {
                let count = part.len().min(BLOCK_BYTES - at);
                let (now, later) = part.split_at(count);
                block[at..at + count].copy_from_slice(now);
                at += count;
                *part = later;
            }
            if last == NIL {
                head = number;
            } else {
                self.link(last, number);
            }
            last = number;
        }
        self.link(last, NIL);
        self.free(reuse);
        head
    }

    fn take(&mut self, reuse: &mut u32) -> u32 {
        if *reuse != NIL {
            let number = *reuse;
            *reuse = self.next(number);
            return number;
        }
        assert!(0 < self.free_count, "make_room was asked first");
        self.free_count -= 1;
        if self.free == NIL {
            self.used_count += 1;
            return self.used_count - 1;
        }
        let number = self.free;
        self.free = self.next(number);
        number
    }

    /// Frees a chain.
    pub(super) fn free(&mut self, mut number: u32) {
        while number != NIL {
            let next = self.next(number);
            self.link(number, self.free);
            self.free = number;
            self.free_count += 1;
            number = next;
        }
    }

    /// Appends the bytes of the value of the record that starts here.
    pub(super) fn read(&self, head: u32, header: &Header, value: &mut Vec<u8>) {
        let mut left = usize::from(header.value_bytes);
        let mut number = head;
        let mut from = LINK_BYTES + HEADER_BYTES + usize::from(header.key_bytes);
        while 0 < left {
            let block = self.block(number);
            let count = left.min(BLOCK_BYTES - from);
            value.extend_from_slice(&block[from..from + count]);
            left -= count;
            from = LINK_BYTES;
            number = self.next(number);
        }
    }
}
