//! What messages and bulk answers are made of, and how it is written.
//!
//! Numbers are little endian; a length goes before what varies, except for a datagram at the end.

use super::message::Write;
use crate::ids::{MemberId, RequestKey, Version};
use std::net::{IpAddr, SocketAddr};
use violet_client::wire::{Key, Value};

pub(super) fn push_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn push_version(out: &mut Vec<u8>, version: Version) {
    push_u64(out, version.time);
    push_u64(out, version.writer);
}

pub(super) fn push_key(out: &mut Vec<u8>, key: &Key) {
    out.push(key.as_bytes().len() as u8);
    out.extend_from_slice(key.as_bytes());
}

pub(super) fn push_value(out: &mut Vec<u8>, value: Value<'_>) {
    out.extend_from_slice(&value.version.to_le_bytes());
    out.extend_from_slice(&(value.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(value.bytes);
}

/// What is kept under a key: nothing (a removal), a value, or a set.
pub(super) fn push_content(out: &mut Vec<u8>, value: Option<Value<'_>>, is_set: bool) {
    out.push(u8::from(value.is_some()) + u8::from(value.is_some() && is_set));
    if let Some(value) = value {
        push_value(out, value);
    }
}

pub(super) fn push_write(out: &mut Vec<u8>, write: &Write<'_>) {
    push_version(out, write.version);
    push_request(out, &write.request);
    push_key(out, &write.key);
    push_content(out, write.value, write.is_set);
}

pub(super) fn push_request(out: &mut Vec<u8>, request: &RequestKey) {
    out.extend_from_slice(&request.0.to_le_bytes());
}

pub(super) fn push_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_le_bytes());
}

pub(super) fn push_members<'l>(out: &mut Vec<u8>, members: impl Iterator<Item = &'l MemberId> + Clone) {
    out.extend_from_slice(&(members.clone().count() as u16).to_le_bytes());
    members.for_each(|member| push_u64(out, member.0));
}

/// Takes bytes off the front; `None` when there are too few.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(chunk)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    pub(super) fn version(&mut self) -> Option<Version> {
        Some(Version { time: self.u64()?, writer: self.u64()? })
    }

    pub(super) fn key(&mut self) -> Option<Key> {
        let length = self.u8()?;
        Key::parse(self.bytes(usize::from(length))?).ok()
    }

    pub(super) fn members(&mut self) -> Option<Vec<MemberId>> {
        let count = usize::from(self.u16()?);
        let mut members = Reader(self.bytes(count * 8)?);
        Some(std::iter::from_fn(|| members.u64().map(MemberId)).collect())
    }

    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        let version = i32::from_le_bytes(*self.take()?);
        let length = self.u32()?;
        Some(Value { version, bytes: self.bytes(length as usize)? })
    }

    pub(super) fn request(&mut self) -> Option<RequestKey> {
        self.take().map(|bytes| RequestKey(u128::from_le_bytes(*bytes)))
    }

    pub(super) fn write(&mut self) -> Option<Write<'a>> {
        let version = self.version()?;
        let request = self.request()?;
        let key = self.key()?;
        let (value, is_set) = self.content()?;
        Some(Write { key, version, value, is_set, request })
    }

    pub(super) fn content(&mut self) -> Option<(Option<Value<'a>>, bool)> {
        Some(match self.u8()? {
            0 => (None, false),
            1 => (Some(self.value()?), false),
            2 => (Some(self.value()?), true),
            _ => return None,
        })
    }

    pub(super) fn address(&mut self) -> Option<SocketAddr> {
        let ip = match self.u8()? {
            4 => IpAddr::from(*self.take::<4>()?),
            6 => IpAddr::from(*self.take::<16>()?),
            _ => return None,
        };
        let port = u16::from_le_bytes(*self.take()?);
        Some(SocketAddr::new(ip, port))
    }
}
