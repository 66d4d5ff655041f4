//! Who holds which key: the table of a Violet cluster, as any of its members tells it, and how to look keys up in it.
//!
//! [`Pages`] puts the pages of a table together, [`Placement`] is a whole table. Both are pure: bytes in, members out.
//! The table says whom to ask *first*; every member takes every request, so an old table is never wrong, only slower.
//! What a page looks like is in [`crate::wire::placement`].
//!
//! Deliberately not here: asking for pages, and when to ask again; see [`crate::zero_hop`].

use std::fmt;
use std::net::SocketAddr;

use xxhash_rust::xxh3::xxh3_64;

use crate::wire::placement::{Page, Table, TableMember};
use crate::wire::{Format, KEY_BYTES_MAX, Key, Status};

/// A key as it stands in the store: raw keys always have all their bytes, zeros if they have no others.
#[must_use]
pub fn stored_key(format: Format, key: &Key) -> Key {
    match format {
        Format::Protobuf => *key,
        Format::Raw => {
            let mut bytes = [0; KEY_BYTES_MAX];
            bytes[..key.as_bytes().len()].copy_from_slice(key.as_bytes());
            Key::parse(&bytes).expect("a key may have so many bytes")
        }
    }
}

/// A table that is being read, page by page.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    version: u64,
    bytes: Vec<u8>,
}

impl Pages {
    /// The offset of the next page.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }

    /// Takes the next page, and returns the table when it was the last. A page that is not the one wanted is left
    /// aside.
    ///
    /// # Errors
    /// [`Status::Malformed`] when the pages are of different tables, because who holds what has changed meanwhile, or
    /// when what they make is no table. Then the next page wanted is the first again.
    pub fn take(&mut self, page: &Page<'_>) -> Result<Option<Placement>, Status> {
        if page.offset != self.wanted() {
            return Ok(None);
        }
        if page.offset == 0 {
            self.version = page.version;
        }
        if page.version != self.version {
            self.bytes.clear();
            return Err(Status::Malformed);
        }
        self.bytes.extend_from_slice(page.bytes);
        if self.bytes.len() < page.table_bytes as usize {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.bytes);
        Ok(Some(Placement { version: self.version, table: Table::decode(&bytes)? }))
    }
}

/// Who holds which key.
#[derive(Clone, PartialEq, Eq)]
pub struct Placement {
    version: u64,
    table: Table,
}

impl Placement {
    /// Stands for who holds what: two tables of one version differ at most in who is alive.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The members, which [`Self::replicas`] counts from 0.
    #[must_use]
    pub fn members(&self) -> &[TableMember] {
        &self.table.members
    }

    /// The members that hold a key, by their numbers: the one that coordinates its writes first. The key is what stands
    /// in the store ([`stored_key`]).
    #[must_use]
    pub fn replicas(&self, key: &[u8]) -> &[u16] {
        let shape = self.table.shape;
        // By no bits at all: one partition. A shift by all 64 would be none.
        let partition = xxh3_64(key).checked_shr(64 - u32::from(shape.partitions_log2)).unwrap_or(0);
        let replicas = usize::from(shape.replicas);
        let start = partition as usize * replicas;
        &self.table.replicas[start..start + replicas]
    }

    /// The addresses of the members that hold a key, in the same order.
    pub fn holders(&self, key: &[u8]) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.replicas(key).iter().map(|number| self.table.members[usize::from(*number)].address)
    }
}

impl fmt::Debug for Placement {
    /// Version, shape and members: thousands of numbers would bury whatever is printed next to them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.table.members.iter().map(|member| (member.address, member.is_alive));
        f.debug_struct("Placement")
            .field("version", &format_args!("{:016x}", self.version))
            .field("shape", &self.table.shape)
            .field("members", &members.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::placement::{TableShape, encode_page};

    /// Members on ports from 1, each of two partitions held by so many; the last members are down.
    pub(crate) fn placement(members: u16, replicas: u8, version: u64, down: u16) -> Placement {
        let mut pages = Pages::default();
        loop {
            let mut field = Vec::new();
            push_page(members, replicas, version, down, pages.wanted(), &mut field);
            if let Some(placement) = pages.take(&Page::decode(&field).unwrap()).unwrap() {
                return placement;
            }
        }
    }

    fn push_page(members: u16, replicas: u8, version: u64, down: u16, offset: u32, field: &mut Vec<u8>) {
        let shape = TableShape { members, replicas, partitions_log2: 1 };
        let member = |number: u16| TableMember {
            address: ([127, 0, 0, 1], number + 1).into(),
            is_alive: number + down < members,
        };
        let replica = |partition: u16, place: usize| (usize::from(partition) + place) as u16 % members;
        encode_page(version, shape, offset, member, replica, field).unwrap();
    }

    #[test]
    fn a_key_is_held_by_the_members_of_its_partition() {
        let placement = placement(5, 3, 9, 1);
        assert_eq!(placement.version(), 9);
        assert_eq!(placement.members().iter().filter(|member| member.is_alive).count(), 4);
        let mut seen = [0; 2];
        for number in 0..100_u32 {
            let key = number.to_le_bytes();
            let partition = (xxh3_64(&key) >> 63) as u16;
            assert_eq!(placement.replicas(&key), [partition, partition + 1, partition + 2]);
            let ports: Vec<u16> = placement.holders(&key).map(|address| address.port()).collect();
            assert_eq!(ports, [partition + 1, partition + 2, partition + 3]);
            seen[usize::from(partition)] += 1;
        }
        assert!(seen.iter().all(|seen| 30 < *seen), "{seen:?}");
    }

    #[test]
    fn pages_of_two_versions_make_no_table() {
        let mut pages = Pages::default();
        let page = |version: u64, offset: u32| {
            let mut field = Vec::new();
            push_page(600, 3, version, 0, offset, &mut field);
            field
        };
        assert_eq!(pages.take(&Page::decode(&page(1, 0)).unwrap()), Ok(None));
        let wanted = pages.wanted();
        assert_eq!(
            pages.take(&Page::decode(&page(1, 0)).unwrap()),
            Ok(None),
            "the same again changes nothing"
        );
        assert_eq!(pages.wanted(), wanted);
        assert_eq!(pages.take(&Page::decode(&page(2, wanted)).unwrap()), Err(Status::Malformed));
        assert_eq!(pages.wanted(), 0);
    }

    #[test]
    fn pages_that_make_no_table_are_refused_together() {
        let bytes = [9; 40];
        let page = Page { version: 1, table_bytes: 40, offset: 0, bytes: &bytes };
        let mut pages = Pages::default();
        assert_eq!(pages.take(&page), Err(Status::Malformed));
        assert_eq!(pages.wanted(), 0);
    }

    #[test]
    fn raw_keys_have_all_their_bytes() {
        let key = Key::parse(b"key").unwrap();
        assert_eq!(stored_key(Format::Protobuf, &key), key);
        assert_eq!(stored_key(Format::Raw, &key).as_bytes().len(), KEY_BYTES_MAX);
    }
}
