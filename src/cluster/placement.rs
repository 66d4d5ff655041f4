//! PLACEHOLDER until merged: plain rendezvous.
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
/// Table.
#[derive(Debug)]
pub struct PartitionTable {
    lists: Vec<Vec<u16>>,
    replicas: usize,
}
impl PartitionTable {
    /// New.
    #[must_use]
    pub fn new(members: &[u64], replicas: usize, log2: u8) -> Self {
        let lists = (0..1u64 << log2)
            .map(|p| {
                let mut list: Vec<u16> = (0..members.len() as u16).collect();
                list.sort_by_key(|m| xxh3_64_with_seed(&members[usize::from(*m)].to_le_bytes(), p));
                list
            })
            .collect();
        Self { lists, replicas }
    }
    /// Partition.
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        (xxh3_64(key) % self.lists.len() as u64) as u16
    }
    /// List.
    #[must_use]
    pub fn preference_list(&self, partition: u16) -> &[u16] {
        &self.lists[usize::from(partition)]
    }
    /// Replicas.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.replicas
    }
}
