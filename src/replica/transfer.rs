//! Copying what another member holds of some partitions: digests, then keys, then records.
//!
//! A [`Pull`] compares the other's digests with this node's, lists the keys of the leaves that differ,
//! and fetches what is missing or older here, and sets of siblings that differ. The other side only answers ([`answer`]); both are
//! functions of what is held, so a pull that breaks off is simply begun again. Equal leaves cost
//! nothing but their sums.

use super::Replica;
use crate::ids::RequestKey;
use crate::peer::transfer::{self, Answer, Copied, Listed, Request};
use crate::peer::{Write, WriteOutcome};
use crate::storage::digest::{Digest, LEAVES};
use crate::storage::{Meta, Record};
use std::collections::VecDeque;
use violet_client::Key;

/// Leaves asked for in one question, and records.
const LEAVES_PER_QUESTION: usize = 1_024;
const RECORDS_PER_QUESTION: usize = 512;
/// Keys listed of one leaf at most: half a gigabyte of them in a partition, a hundred in a node.
const LISTED_PER_LEAF_MAX: usize = 1_500;

const _: () = assert!(LEAVES == transfer::DIGEST_LEAVES && LEAVES == u32::BITS as usize);

/// Answers another member's question; `false` when it is none.
pub fn answer(replica: &Replica, question: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(question) = Request::decode(question) else { return false };
    match question {
        Request::Digests(partitions) => {
            for partition in partitions {
                transfer::push_digest(out, replica.digest(partition).leaves());
            }
        }
        Request::Keys(leaves) => {
            let mut answer = Answer::new(out);
            for (partition, leaves) in leaves {
                if answer.is_full() {
                    break;
                }
                let mut listed = 0;
                replica.scan(partition, leaves, &mut |key, meta| {
                    listed += 1;
                    if listed <= LISTED_PER_LEAF_MAX {
                        let Meta { version, removed, contents, .. } = *meta;
                        answer.list(&Listed { partition, key: *key, version, removed, contents });
                    }
                });
                answer.cover();
            }
        }
        Request::Records(keys) => {
            let mut answer = Answer::new(out);
            let mut bytes = Vec::new();
            for (partition, key) in keys {
                if answer.is_full() {
                    break;
                }
                if let Some(record) = replica.read_record(partition, &key, &mut bytes) {
                    let Record { version, value, is_set } = record;
                    answer.copy(&Copied { partition, key, version, value, is_set });
                }
                answer.cover();
            }
        }
    }
    true
}

/// What a pull needs next.
#[derive(Debug)]
pub enum Step {
    /// Ask this.
    Ask(Vec<u8>),
    /// Everything that the other held is here.
    Done,
    /// What came was no answer.
    Broken,
}

/// One copy in progress.
#[derive(Debug)]
pub struct Pull {
    partitions: Vec<u16>,
    /// The other's roots, once its digests are here.
    roots: Vec<u64>,
    leaves: VecDeque<(u16, u32)>,
    wanted: VecDeque<(u16, Key)>,
    stage: Stage,
    /// Records taken over.
    pub copied: usize,
    /// Records for which there was no memory.
    pub refused: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Digests,
    Keys,
    Records,
}

impl Pull {
    /// A pull of these partitions, and its first question.
    #[must_use]
    pub fn begin(partitions: Vec<u16>) -> (Self, Vec<u8>) {
        let question = question(Request::Digests(partitions.clone()));
        let pull = Self {
            partitions,
            roots: Vec::new(),
            leaves: VecDeque::new(),
            wanted: VecDeque::new(),
            stage: Stage::Digests,
            copied: 0,
            refused: 0,
        };
        (pull, question)
    }

    /// The partitions, each with the root of what the other held.
    pub fn roots(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.partitions.iter().copied().zip(self.roots.iter().copied())
    }

    /// The partitions that it is about.
    #[must_use]
    pub fn partitions(&self) -> &[u16] {
        &self.partitions
    }

    /// Takes an answer in.
    pub fn on_answer(&mut self, replica: &Replica, bytes: &[u8]) -> Step {
        let taken = match self.stage {
            Stage::Digests => self.take_digests(replica, bytes),
            Stage::Keys => self.take_keys(replica, bytes),
            Stage::Records => self.take_records(replica, bytes),
        };
        if taken.is_some() { self.next_question() } else { Step::Broken }
    }

    fn next_question(&mut self) -> Step {
        // Records first: the list of what is wanted stays short.
        if !self.wanted.is_empty() && (self.leaves.is_empty() || RECORDS_PER_QUESTION <= self.wanted.len()) {
            self.stage = Stage::Records;
            let keys = self.wanted.iter().take(RECORDS_PER_QUESTION).copied().collect();
            return Step::Ask(question(Request::Records(keys)));
        }
        if self.leaves.is_empty() {
            return Step::Done;
        }
        self.stage = Stage::Keys;
        let leaves = self.leaves.iter().take(LEAVES_PER_QUESTION).copied().collect();
        Step::Ask(question(Request::Keys(leaves)))
    }

    fn take_digests(&mut self, replica: &Replica, bytes: &[u8]) -> Option<()> {
        let digests = transfer::digests(bytes).filter(|list| list.len() == self.partitions.len())?;
        for (&partition, leaves) in self.partitions.iter().zip(digests) {
            let theirs = Digest::from_leaves(leaves);
            self.roots.push(theirs.root());
            let differing = replica.digest(partition).differing(&theirs);
            for leaf in (0..LEAVES).filter(|leaf| differing >> leaf & 1 == 1 && leaves[*leaf] != 0) {
                self.leaves.push_back((partition, 1 << leaf));
            }
        }
        Some(())
    }

    fn take_keys(&mut self, replica: &Replica, bytes: &[u8]) -> Option<()> {
        let (covered, listed) = transfer::keys(bytes)?;
        if covered == 0 || self.leaves.len() < covered {
            return None;
        }
        self.leaves.drain(..covered);
        let lacking = listed.iter().filter(|listed| Self::lacks(replica, listed));
        let lacking: Vec<(u16, Key)> = lacking.map(|listed| (listed.partition, listed.key)).collect();
        self.wanted.extend(lacking);
        Some(())
    }

    fn lacks(replica: &Replica, listed: &Listed) -> bool {
        if listed.version.time <= replica.wiped_at() {
            return false;
        }
        // Old tombstones are copied, too: only then does their holder hear that all owners hold them.
        let Some(mine) = replica.meta(listed.partition, &listed.key) else { return true };
        // A set takes in even what is older.
        mine.version < listed.version || (mine.is_set() && mine.contents != listed.contents)
    }

    fn take_records(&mut self, replica: &Replica, bytes: &[u8]) -> Option<()> {
        let (mut copied, mut refused) = (0, 0);
        let covered = transfer::records(bytes, |record| {
            let Copied { partition, key, version, value, is_set } = *record;
            let write = Write { key, version, value, is_set, request: RequestKey(0) };
            match replica.apply(partition, &write, true, false).0 {
                WriteOutcome::Applied => copied += 1,
                WriteOutcome::NoSpace => refused += 1,
                WriteOutcome::BelowWipe(_) => {}
            }
        })?;
        self.copied += copied;
        self.refused += refused;
        if covered == 0 || self.wanted.len() < covered {
            return None;
        }
        self.wanted.drain(..covered);
        Some(())
    }
}

fn question(request: Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}
