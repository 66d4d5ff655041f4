//! Lists in messages: read from the frame's bytes where they are needed, without a copy before that.

use super::super::fields::{Reader, push_members, push_u64};
use crate::ids::MemberId;

/// Partitions, and for each a number that stands for all that a member holds in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roots<'a>(pub(super) &'a [u8]);

impl<'a> Roots<'a> {
    /// Bytes of one entry.
    pub const ENTRY_BYTES: usize = 10;

    /// Appends an entry to what [`Roots::over`] reads.
    pub fn push(out: &mut Vec<u8>, partition: u16, root: u64) {
        out.extend_from_slice(&partition.to_le_bytes());
        push_u64(out, root);
    }

    /// The entries in these bytes; a rest that is none is left out.
    #[must_use]
    pub fn over(bytes: &'a [u8]) -> Self {
        Self(&bytes[..bytes.len() - bytes.len() % Self::ENTRY_BYTES])
    }

    /// The entries.
    pub fn iter(self) -> impl Iterator<Item = (u16, u64)> + 'a {
        self.0.chunks_exact(Self::ENTRY_BYTES).filter_map(|entry| {
            let mut reader = Reader(entry);
            Some((reader.u16()?, reader.u64()?))
        })
    }
}

/// Lists of placed members: the layout in force, and those that it replaces. The first is written in
/// full, the others as what they have and lack beside it, so that a hundred members fit one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberLists<'a>(pub(super) &'a [u8]);

impl<'a> MemberLists<'a> {
    /// Appends lists, each in rising order, to what [`MemberLists::over`] reads.
    pub fn push<'l>(out: &mut Vec<u8>, first: &[MemberId], others: impl Iterator<Item = &'l [MemberId]>) {
        push_members(out, first.iter());
        for other in others {
            push_members(out, other.iter().filter(|id| first.binary_search(id).is_err()));
            push_members(out, first.iter().filter(|id| other.binary_search(id).is_err()));
        }
    }

    /// The lists in these bytes.
    #[must_use]
    pub fn over(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The lists, the layout in force first; a rest that is none is left out.
    #[must_use]
    pub fn to_vecs(self) -> Vec<Vec<MemberId>> {
        let mut reader = Reader(self.0);
        let Some(first) = reader.members() else { return Vec::new() };
        let mut lists = vec![first];
        while let Some((added, missing)) = reader.members().zip(reader.members()) {
            let mut list: Vec<MemberId> =
                lists[0].iter().filter(|id| !missing.contains(id)).copied().collect();
            list.extend(added);
            list.sort_unstable();
            lists.push(list);
        }
        lists
    }
}
