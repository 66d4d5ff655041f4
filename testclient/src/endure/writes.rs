//! The same deed on many keys, a few at a time, each noted in the ledger.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use violet_client::{Format, Status};

use super::history::Deed;
use super::traffic::Shared;
use crate::batch;
use crate::grid::course_policy;
use crate::keyset::KeySet;
use crate::load::{Ask, Call};
use crate::values::Random;

/// Parallel requests.
const CLIENTS: usize = 16;

/// Whom to ask.
#[derive(Clone, Copy, Debug)]
pub struct Via<'a> {
    /// All servers; node numbers mean these.
    pub servers: &'a [SocketAddr],
    /// The layout.
    pub format: Format,
    /// The nodes to ask, a random one each time.
    pub nodes: &'a [usize],
}

/// Tries a deed on each of these keys; those that were not acknowledged.
///
/// # Errors
/// Sockets that cannot be opened.
pub fn write_once(
    via: &Via<'_>,
    shared: &Shared,
    random: &mut Random,
    deed: Deed,
    numbers: &[u64],
) -> Result<Vec<u64>, String> {
    let mut queue = numbers.iter();
    // Not simply the last step: a load may write the same key at the same time.
    let steps = RefCell::new(BTreeMap::new());
    let mut refused = Vec::new();
    let next = |value: &mut Vec<u8>| {
        let &number = queue.next()?;
        let mut ledger = shared.ledger();
        let step = ledger.begin(number, deed, shared.now());
        steps.borrow_mut().insert(number, step);
        let key = ledger.keys.key(number);
        let ask = match deed {
            Deed::Remove => Ask::Remove { key },
            Deed::Put => {
                ledger.keys.contents.write(number, step, value);
                Ask::Put { key, version: step }
            }
        };
        Some(Call { server: via.nodes[random.below(via.nodes.len())], ask })
    };
    let on_end = |call: &Call, end: crate::load::End<'_>| {
        let (Ask::Put { key, .. } | Ask::Remove { key }) = call.ask else { return };
        let number = KeySet::number(&key);
        let acknowledged = end.status() == Some(Status::Success);
        shared.ledger().end(number, steps.borrow()[&number], shared.now(), acknowledged);
        // A removal that finds nothing is one that happened in the round before.
        let already_gone = deed == Deed::Remove && end.status() == Some(Status::NoSuchKey);
        if !acknowledged && !already_gone {
            refused.push(number);
        }
    };
    let waits = course_policy(via.format).waits;
    batch::run(via.servers, via.format, &waits, CLIENTS, next, on_end)?;
    Ok(refused)
}
