//! Marks that a run leaves on the servers, to tell when somebody else empties them.
//!
//! A grid wipes the servers before each cell, and so does many another run. Two of them against the same servers take
//! each other's data away, and each finds values missing that the servers acknowledged. No key of its own protects a run from
//! that, so it can only be named: a few keys that nobody else knows are written before a load, and if values were
//! wrong and *all* of those are gone, too, that was no single lost value.

use std::net::SocketAddr;

use violet_client::{Client, Format, Key};

use crate::names::{KEY_BYTES_MAX, KeyNames, Mark};

/// How many are left.
const MARKS: u64 = 16;

/// Keys that this run has written for no other purpose.
#[derive(Debug)]
pub struct Marks(Vec<Key>);

impl Marks {
    /// Leaves marks; those that are not acknowledged do not count.
    ///
    /// # Errors
    /// A sentence, when no socket can be opened.
    pub fn leave(servers: &[SocketAddr], format: Format, mark: Mark, seed: u64) -> Result<Self, String> {
        let names = KeyNames::new(mark, seed, KEY_BYTES_MAX);
        let mut client = client(servers, format)?;
        let mut stored = |key: &Key| client.put(key.as_bytes(), b"a mark", 1).is_ok();
        Ok(Self((0..MARKS).map(|number| names.key(number)).filter(|key| stored(key)).collect()))
    }

    /// What to say if all of them are gone; `None` if one is there, or if that cannot be known.
    pub fn loss(&self, servers: &[SocketAddr], format: Format) -> Option<String> {
        let mut client = client(servers, format).ok()?;
        let is_gone = |key: &Key| matches!(client.get(key.as_bytes()), Ok(None));
        let is_lost = !self.0.is_empty() && self.0.iter().all(is_gone);
        is_lost.then(|| {
            format!(
                "the {} marks that this run left are gone, too: the servers were emptied meanwhile, as a second run \
                 against them does",
                self.0.len()
            )
        })
    }
}

fn client(servers: &[SocketAddr], format: Format) -> Result<Client, String> {
    let client = Client::new(servers.to_vec()).map_err(|error| error.to_string())?;
    Ok(client.with_format(format).with_policy(crate::grid::course_policy(format)))
}
