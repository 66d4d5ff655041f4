//! What the private command GetPlacement (0x28) carries: the table that says who holds which key, in pages.
//!
//! ```text
//! request   the place of the key holds the first byte of the table that is wanted: offset(4)
//!           fixed layout: the other 28 bytes of the key are zero; envelope: a key of four bytes
//! response  the value field is a page:  version(8) table_bytes(4) offset(4) bytes(1 …)
//!
//! table     1(1) hash(1) partitions_log2(1) replicas(1) members(2) 0(2)
//!           members    × { ip(16) port(2) state(1) }
//!           partitions × { replicas × member(2) }
//! ```
//!
//! All numbers are little endian; an IPv4 address stands as IPv6 does it (`::ffff:a.b.c.d`). `hash` is 1: the
//! partition of a key is the top `partitions_log2` bits of its XXH3 (64 bits, seed 0), over all 32 bytes in the fixed
//! layout. `member` counts members from 0, the one that coordinates the partition comes first. `state` is 1 for a member
//! that was alive when the page was written, 0 for one that was down. `version` stands for who holds what: pages of
//! one version belong together, and states may differ between them.
//!
//! Deliberately not here: who stands in for whom, and former holders. Whoever is asked in vain passes a request on, so
//! a table that is old costs a detour and nothing else.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::Status;

/// Longest page, its head included.
pub const PAGE_BYTES_MAX: usize = 8_000;
/// Bytes of a page before the table's.
pub const PAGE_HEAD_BYTES: usize = 16;
/// Most members that a table can have.
pub const TABLE_MEMBERS_MAX: usize = 4_096;
/// Most replicas of a key that a table can have.
pub const TABLE_REPLICAS_MAX: usize = 16;
/// Most partitions that a table can have, as a power of two.
pub const TABLE_PARTITIONS_LOG2_MAX: u8 = 16;
/// The only way to write a table so far.
const TABLE_FORMAT: u8 = 1;
/// The hash of keys: XXH3, 64 bits, no seed.
const HASH_XXH3: u8 = 1;
const TABLE_HEAD_BYTES: usize = 8;
const MEMBER_BYTES: usize = 19;
const INDEX_BYTES: usize = 2;
/// Longest table.
pub const TABLE_BYTES_MAX: usize = TABLE_HEAD_BYTES
    + TABLE_MEMBERS_MAX * MEMBER_BYTES
    + (TABLE_REPLICAS_MAX << TABLE_PARTITIONS_LOG2_MAX) * INDEX_BYTES;
const _: () = assert!(TABLE_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(TABLE_MEMBERS_MAX <= u16::MAX as usize);
const _: () = assert!(PAGE_BYTES_MAX <= super::PROTOBUF_VALUE_BYTES_MAX);

/// A member as a table tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMember {
    /// Where it takes requests.
    pub address: SocketAddr,
    /// It was alive when the page was written.
    pub is_alive: bool,
}

/// How large a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Members.
    pub members: u16,
    /// Replicas of each partition.
    pub replicas: u8,
    /// Partitions, as a power of two.
    pub partitions_log2: u8,
}

impl TableShape {
    /// Bytes of the whole table; `None` when it is larger than a table may be.
    #[must_use]
    pub fn table_bytes(&self) -> Option<usize> {
        let members = usize::from(self.members);
        let fits = (1..=TABLE_MEMBERS_MAX).contains(&members)
            && (1..=TABLE_REPLICAS_MAX).contains(&usize::from(self.replicas))
            && self.partitions_log2 <= TABLE_PARTITIONS_LOG2_MAX;
        let indices = usize::from(self.replicas) << self.partitions_log2.min(TABLE_PARTITIONS_LOG2_MAX);
        fits.then_some(TABLE_HEAD_BYTES + members * MEMBER_BYTES + indices * INDEX_BYTES)
    }

    fn head(&self) -> [u8; TABLE_HEAD_BYTES] {
        let [low, high] = self.members.to_le_bytes();
        [TABLE_FORMAT, HASH_XXH3, self.partitions_log2, self.replicas, low, high, 0, 0]
    }

    fn of_head(head: &[u8; TABLE_HEAD_BYTES]) -> Result<Self, Status> {
        let [format, hash, partitions_log2, replicas, low, high, zero, nought] = *head;
        if (format, hash, zero, nought) != (TABLE_FORMAT, HASH_XXH3, 0, 0) {
            return Err(Status::Malformed);
        }
        Ok(Self { members: u16::from_le_bytes([low, high]), replicas, partitions_log2 })
    }
}

/// A page of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// Stands for who holds what.
    pub version: u64,
    /// Bytes of the whole table.
    pub table_bytes: u32,
    /// Where in the table these bytes stand.
    pub offset: u32,
    /// At least one byte.
    pub bytes: &'a [u8],
}

impl<'a> Page<'a> {
    /// Reads a value field.
    ///
    /// # Errors
    /// [`Status::Malformed`] for what is no page: too short or too long, of a table that is too large, or beyond the
    /// table's end.
    pub fn decode(field: &'a [u8]) -> Result<Self, Status> {
        let take = || {
            let (version, rest) = field.split_first_chunk()?;
            let (table_bytes, rest) = rest.split_first_chunk()?;
            let (offset, bytes) = rest.split_first_chunk()?;
            let (table_bytes, offset) = (u32::from_le_bytes(*table_bytes), u32::from_le_bytes(*offset));
            Some(Self { version: u64::from_le_bytes(*version), table_bytes, offset, bytes })
        };
        let page = take().ok_or(Status::Malformed)?;
        let end = page.offset as usize + page.bytes.len();
        let fits = field.len() <= PAGE_BYTES_MAX
            && !page.bytes.is_empty()
            && end <= page.table_bytes as usize
            && page.table_bytes as usize <= TABLE_BYTES_MAX;
        if fits { Ok(page) } else { Err(Status::Malformed) }
    }
}

/// Appends the page of a table that begins at `offset`. `member` tells of a member by its number, `replica` which
/// member holds a partition in which place.
///
/// # Errors
/// [`Status::Malformed`] when the table has no such byte, [`Status::InternalFailure`] when it is larger than
/// a table may be; `out` is then as it was.
pub fn encode_page(
    version: u64,
    shape: TableShape,
    offset: u32,
    member: impl Fn(u16) -> TableMember,
    replica: impl Fn(u16, usize) -> u16,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    let table_bytes = shape.table_bytes().ok_or(Status::InternalFailure)?;
    let mut at = offset as usize;
    if table_bytes <= at {
        return Err(Status::Malformed);
    }
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&u32::try_from(table_bytes).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    let end = table_bytes.min(at + PAGE_BYTES_MAX - PAGE_HEAD_BYTES);
    let members_at = TABLE_HEAD_BYTES;
    let indices_at = members_at + usize::from(shape.members) * MEMBER_BYTES;
    // Piece by piece; the first and the last may be cut.
    let mut push = |start: usize, piece: &[u8], at: &mut usize| {
        let stop = (start + piece.len()).min(end);
        out.extend_from_slice(&piece[*at - start..stop - start]);
        *at = stop;
    };
    while at < end {
        if at < members_at {
            push(0, &shape.head(), &mut at);
        } else if at < indices_at {
            let number = (at - members_at) / MEMBER_BYTES;
            push(members_at + number * MEMBER_BYTES, &member_bytes(member(number as u16)), &mut at);
        } else {
            let number = (at - indices_at) / INDEX_BYTES;
            let replicas = usize::from(shape.replicas);
            let index = replica((number / replicas) as u16, number % replicas);
            push(indices_at + number * INDEX_BYTES, &index.to_le_bytes(), &mut at);
        }
    }
    Ok(())
}

fn member_bytes(member: TableMember) -> [u8; MEMBER_BYTES] {
    let ip = match member.address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; MEMBER_BYTES];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..18].copy_from_slice(&member.address.port().to_le_bytes());
    bytes[18] = u8::from(member.is_alive);
    bytes
}

fn member_of(bytes: &[u8; MEMBER_BYTES]) -> Result<TableMember, Status> {
    let (ip, rest) = bytes.split_first_chunk::<16>().ok_or(Status::Malformed)?;
    let &[low, high, state] = rest else { return Err(Status::Malformed) };
    let ip = Ipv6Addr::from(*ip).to_canonical();
    let port = u16::from_le_bytes([low, high]);
    // Where no single process can be, nothing must be sent.
    let is_nobody =
        ip.is_unspecified() || ip.is_multicast() || ip == std::net::Ipv4Addr::BROADCAST || port == 0;
    if is_nobody || 1 < state {
        return Err(Status::Malformed);
    }
    Ok(TableMember { address: SocketAddr::new(ip, port), is_alive: state == 1 })
}

/// A whole table, read and found to be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// How large it is.
    pub shape: TableShape,
    /// The members.
    pub members: Vec<TableMember>,
    /// The members of each partition, one partition after the other.
    pub replicas: Vec<u16>,
}

impl Table {
    /// Reads a table to its end.
    ///
    /// # Errors
    /// [`Status::Malformed`] for anything that is not exactly one table whose partitions are held by members of
    /// its own, each by different ones.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Status::Malformed)?;
        let shape = TableShape::of_head(head)?;
        if shape.table_bytes() != Some(bytes.len()) {
            return Err(Status::Malformed);
        }
        let (members, indices) = rest.split_at(usize::from(shape.members) * MEMBER_BYTES);
        let (members, _) = members.as_chunks();
        let members = members.iter().map(member_of).collect::<Result<Vec<_>, _>>()?;
        let (indices, _) = indices.as_chunks();
        let replicas: Vec<u16> = indices.iter().map(|index| u16::from_le_bytes(*index)).collect();
        let is_sound = |list: &[u16]| {
            let is_first = |(place, index): (usize, &u16)| !list[..place].contains(index);
            list.iter().all(|index| *index < shape.members) && list.iter().enumerate().all(is_first)
        };
        if replicas.chunks(usize::from(shape.replicas)).all(is_sound) {
            Ok(Self { shape, members, replicas })
        } else {
            Err(Status::Malformed)
        }
    }
}

/// Reads the offset from the place of a key: four bytes, and zeros behind them.
pub(super) fn offset_of(key: &[u8]) -> Result<u32, Status> {
    let (offset, rest) = key.split_first_chunk().ok_or(Status::Malformed)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Status::Malformed);
    }
    Ok(u32::from_le_bytes(*offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u16) -> TableMember {
        let ip = if number.is_multiple_of(2) {
            IpAddr::from([10, 0, 0, 1])
        } else {
            IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])
        };
        TableMember { address: SocketAddr::new(ip, 4410 + number), is_alive: !number.is_multiple_of(3) }
    }

    /// Member numbers follow each other: a partition's replicas are different whatever the partition.
    fn replica(shape: TableShape) -> impl Fn(u16, usize) -> u16 {
        move |partition, place| ((usize::from(partition) + place) % usize::from(shape.members)) as u16
    }

    fn all_pages(shape: TableShape) -> Vec<u8> {
        let mut table = Vec::new();
        loop {
            let mut field = Vec::new();
            encode_page(7, shape, table.len() as u32, member, replica(shape), &mut field).unwrap();
            let page = Page::decode(&field).unwrap();
            assert_eq!((page.version, page.offset as usize), (7, table.len()));
            table.extend_from_slice(page.bytes);
            if table.len() == page.table_bytes as usize {
                return table;
            }
        }
    }

    const SHAPES: [TableShape; 4] = [
        TableShape { members: 1, replicas: 1, partitions_log2: 0 },
        TableShape { members: 15, replicas: 3, partitions_log2: 11 },
        TableShape { members: 500, replicas: 7, partitions_log2: 14 },
        TableShape { members: 2, replicas: 2, partitions_log2: 6 },
    ];

    #[test]
    fn pages_make_the_table_that_was_written() {
        for shape in SHAPES {
            let bytes = all_pages(shape);
            assert_eq!(Some(bytes.len()), shape.table_bytes());
            let table = Table::decode(&bytes).unwrap();
            assert_eq!(table.shape, shape);
            assert_eq!(table.members, (0..shape.members).map(member).collect::<Vec<_>>());
            let replica = replica(shape);
            for (number, index) in table.replicas.iter().enumerate() {
                let replicas = usize::from(shape.replicas);
                assert_eq!(*index, replica((number / replicas) as u16, number % replicas));
            }
        }
    }

    #[test]
    fn a_page_can_begin_anywhere_in_the_table_and_nowhere_else() {
        let shape = SHAPES[1];
        let whole = all_pages(shape);
        for offset in (0..400).chain(whole.len() - 40..whole.len()) {
            let mut field = b"kept".to_vec();
            encode_page(7, shape, offset as u32, member, replica(shape), &mut field).unwrap();
            assert!(field.len() <= 4 + PAGE_BYTES_MAX);
            let page = Page::decode(&field[4..]).unwrap();
            assert_eq!(page.bytes, &whole[offset..offset + page.bytes.len()]);
        }
        let mut field = b"kept".to_vec();
        for offset in [whole.len() as u32, u32::MAX] {
            let result = encode_page(7, shape, offset, member, replica(shape), &mut field);
            assert_eq!((result, &field[..]), (Err(Status::Malformed), &b"kept"[..]));
        }
        let too_large = TableShape { members: 1 + TABLE_MEMBERS_MAX as u16, ..shape };
        let result = encode_page(7, too_large, 0, member, replica(shape), &mut field);
        assert_eq!((result, &field[..]), (Err(Status::InternalFailure), &b"kept"[..]));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let mut field = Vec::new();
        encode_page(7, SHAPES[3], 0, member, replica(SHAPES[3]), &mut field).unwrap();
        for end in 0..=PAGE_HEAD_BYTES {
            assert_eq!(Page::decode(&field[..end]), Err(Status::Malformed), "cut at {end}");
        }
        let changed = |at: usize, byte: u8| {
            let mut field = field.clone();
            field[at] = byte;
            field
        };
        // A table that is too large, a table that ends before the page does, a page beyond the end.
        for wrong in [changed(11, 1), changed(8, 1), changed(13, 0xff)] {
            assert_eq!(Page::decode(&wrong), Err(Status::Malformed));
        }
        let mut long = field[..PAGE_HEAD_BYTES].to_vec();
        long[8..12].copy_from_slice(&60_000_u32.to_le_bytes());
        long.resize(PAGE_BYTES_MAX, 0);
        assert!(Page::decode(&long).is_ok());
        long.push(0);
        assert_eq!(Page::decode(&long), Err(Status::Malformed));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let shape = SHAPES[3];
        let whole = all_pages(shape);
        let check = |at: usize, byte: u8| {
            let mut wrong = whole.clone();
            wrong[at] = byte;
            assert_eq!(Table::decode(&wrong), Err(Status::Malformed), "byte {at} = {byte}");
        };
        for end in 0..whole.len() {
            assert_eq!(Table::decode(&whole[..end]), Err(Status::Malformed), "cut at {end}");
        }
        // Format, hash, more partitions, no replicas, more members, no members, what must be zero.
        for (at, byte) in [(0, 2), (1, 2), (2, 7), (2, 255), (3, 0), (4, 3), (4, 0), (5, 255), (6, 1)] {
            check(at, byte);
        }
        // No port, no such state, nobody's address; a member that is not there; one that holds twice.
        let indices_at = TABLE_HEAD_BYTES + 2 * MEMBER_BYTES;
        let mut nobody = whole.clone();
        nobody[TABLE_HEAD_BYTES..TABLE_HEAD_BYTES + 16].fill(0);
        assert_eq!(Table::decode(&nobody), Err(Status::Malformed));
        let mut portless = whole.clone();
        portless[TABLE_HEAD_BYTES + 16..TABLE_HEAD_BYTES + 18].fill(0);
        assert_eq!(Table::decode(&portless), Err(Status::Malformed));
        check(TABLE_HEAD_BYTES, 0xff);
        check(TABLE_HEAD_BYTES + 18, 2);
        check(indices_at, 2);
        check(indices_at, 1);
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(Table::decode(&longer), Err(Status::Malformed));
    }

    #[test]
    fn an_offset_is_four_bytes_and_zeros() {
        assert_eq!(offset_of(&[1, 2, 0, 0]), Ok(513));
        let mut raw = [0; 32];
        raw[3] = 1;
        assert_eq!(offset_of(&raw), Ok(1 << 24));
        raw[31] = 1;
        for wrong in [&raw[..], &[1, 2, 3], &[]] {
            assert_eq!(offset_of(wrong), Err(Status::Malformed));
        }
    }
}
