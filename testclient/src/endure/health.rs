//! What nodes say about themselves: member counts, and whether they have anything left to repair.
//!
//! Only the public protocol is used: GETMEMBERSHIPCOUNT and the private 0x23, whose text is JSON. A
//! figure that a node does not report counts as nothing to do, so an older node never blocks a wait.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use violet_client::RetryPolicy;
use violet_client::{Client, Format, Key, Operation, Reply, Status};

/// How long to wait for an answer; a node that is silent is asked again in the next look.
const ANSWER_WAITS: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(700)];
/// How often the nodes are looked at.
const COUNT_POLL: Duration = Duration::from_millis(100);
const HEALED_POLL: Duration = Duration::from_millis(500);
/// In how many looks in a row everything must be well: right after a fault nobody knows of it yet.
const HEALED_LOOKS: u32 = 3;

/// One node's own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// It does not serve reads yet.
    pub catching_up: bool,
    /// Writes that it keeps for others.
    pub hints: u64,
    /// Partitions that are not yet known to be whole.
    pub unsettled: u64,
    /// Keys that it holds.
    pub keys: u64,
    /// Removal marks that it holds.
    pub tombstones: u64,
}

impl Account {
    /// Reads the JSON of the private statistics command.
    pub fn parse(text: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(text).ok()?;
        let number = |path: &str| json.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        Some(Self {
            catching_up: json.pointer("/catching_up").and_then(Value::as_bool).unwrap_or(false),
            hints: number("/memory/hints"),
            unsettled: number("/repair/unsettled"),
            keys: number("/memory/keys"),
            tombstones: number("/memory/tombstones"),
        })
    }

    /// Whether nothing is left to do.
    pub fn is_healed(&self) -> bool {
        !self.catching_up && self.hints == 0 && self.unsettled == 0
    }
}

/// Asks nodes about themselves.
#[derive(Debug)]
pub struct Doctor {
    client: Client,
}

impl Doctor {
    /// For nodes at these addresses.
    ///
    /// # Errors
    /// A sentence, when no socket can be opened.
    pub fn new(addresses: &[SocketAddr], format: Format) -> Result<Self, String> {
        let client = Client::new(addresses.to_vec()).map_err(|error| error.to_string())?;
        let policy = RetryPolicy {
            waits: ANSWER_WAITS.to_vec(),
            overload_wait_max: Duration::from_millis(200),
            overload_rounds_max: 1,
        };
        Ok(Self { client: client.with_format(format).with_policy(policy) })
    }

    fn ask(&mut self, nodes: &[SocketAddr], operation: Operation<'_>) -> Vec<Option<Reply>> {
        let replies = self.client.ask_each(nodes, operation);
        replies.into_iter().map(|reply| reply.ok().filter(|reply| reply.status == Status::Success)).collect()
    }

    /// How many members each of these counts; `None` for one that does not answer.
    pub fn counts(&mut self, nodes: &[SocketAddr]) -> Vec<Option<i32>> {
        let replies = self.ask(nodes, Operation::GetMembershipCount);
        replies.into_iter().map(|reply| reply.and_then(|reply| reply.membership_count)).collect()
    }

    /// What each of these says about itself.
    pub fn accounts(&mut self, nodes: &[SocketAddr]) -> Vec<Option<Account>> {
        let replies = self.ask(nodes, Operation::GetStats);
        replies.into_iter().map(|reply| Account::parse(&reply?.text()?)).collect()
    }

    /// Who holds a key, as a node sees it; `None` when it does not answer.
    pub fn holders(&mut self, node: SocketAddr, key: Key) -> Option<Holders> {
        let reply = self.ask(&[node], Operation::Locate { key }).pop()??;
        Holders::parse(&reply.text()?)
    }

    /// Waits until every one of these counts exactly all of them; how long that took.
    ///
    /// # Errors
    /// What is still wrong at the limit.
    pub fn await_counts(&mut self, nodes: &[SocketAddr], limit: Duration) -> Result<Duration, String> {
        let since = Instant::now();
        loop {
            let counts = self.counts(nodes);
            let is_right = |count: &Option<i32>| count.is_some_and(|count| count as usize == nodes.len());
            let wrong: Vec<String> = nodes
                .iter()
                .zip(&counts)
                .filter(|(_, count)| !is_right(count))
                .map(|(node, count)| match count {
                    Some(count) => format!("{node} counts {count}"),
                    None => format!("{node} does not answer"),
                })
                .collect();
            if wrong.is_empty() {
                return Ok(since.elapsed());
            }
            if limit < since.elapsed() {
                let (seconds, expected) = (limit.as_secs(), nodes.len());
                return Err(format!(
                    "after {seconds} s {} of {expected} nodes do not count {expected} members: {}",
                    wrong.len(),
                    wrong[..wrong.len().min(5)].join(", ")
                ));
            }
            std::thread::sleep(COUNT_POLL);
        }
    }

    /// Waits until every one of these has nothing left to repair, several looks in a row; how long that took.
    ///
    /// # Errors
    /// What is still to do at the limit.
    pub fn await_healed(&mut self, nodes: &[SocketAddr], limit: Duration) -> Result<Duration, String> {
        let since = Instant::now();
        let (mut looks, mut healed_at) = (0, Duration::ZERO);
        loop {
            let accounts = self.accounts(nodes);
            if accounts.iter().all(|account| account.is_some_and(|account| account.is_healed())) {
                if looks == 0 {
                    healed_at = since.elapsed();
                }
                looks += 1;
                if looks == HEALED_LOOKS {
                    return Ok(healed_at);
                }
            } else {
                looks = 0;
            }
            if limit < since.elapsed() {
                return Err(format!("after {} s {}", limit.as_secs(), what_is_left(&accounts)));
            }
            std::thread::sleep(HEALED_POLL);
        }
    }
}

/// Who holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Its replicas, in reach or not.
    pub replicas: Vec<SocketAddr>,
    /// All of them are in reach, and nobody stands in or was a replica until just now.
    pub is_settled: bool,
}

impl Holders {
    /// Reads the text of the private 0x27, one `address role` a line.
    fn parse(text: &str) -> Option<Self> {
        let mut holders = Self { replicas: Vec::new(), is_settled: true };
        for line in text.lines() {
            let (address, role) = line.split_once(' ')?;
            holders.is_settled &= role == "replica";
            if role.ends_with("replica") {
                holders.replicas.push(address.parse().ok()?);
            }
        }
        // A key without replicas would be one that nobody can lose.
        (!holders.replicas.is_empty()).then_some(holders)
    }
}

fn what_is_left(accounts: &[Option<Account>]) -> String {
    let known = || accounts.iter().flatten();
    format!(
        "{} of {} nodes are silent, {} catch up, {} hints and {} unsettled partitions are left",
        accounts.len() - known().count(),
        accounts.len(),
        known().filter(|account| account.catching_up).count(),
        known().map(|account| account.hints).sum::<u64>(),
        known().map(|account| account.unsettled).sum::<u64>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_and_what_is_not_said_is_nothing_to_do() {
        let check = |text: &str, healed: bool| {
            assert_eq!(Account::parse(text).unwrap().is_healed(), healed, "{text}");
        };
        check("{}", true);
        check(r#"{"catching_up": false, "memory": {"hints": 0, "keys": 5}}"#, true);
        check(r#"{"catching_up": true}"#, false);
        check(r#"{"memory": {"hints": 1}}"#, false);
        check(r#"{"repair": {"unsettled": 2}}"#, false);
        check(r#"{"repair": {"unsettled": 0}}"#, true);
        assert_eq!(Account::parse("no json"), None);
        let account = Account::parse(r#"{"memory": {"keys": 5, "tombstones": 2}}"#).unwrap();
        assert_eq!((account.keys, account.tombstones), (5, 2));
    }

    #[test]
    fn holders_are_settled_when_all_are_replicas_in_reach() {
        let check = |text: &str, ports: &[u16], is_settled: bool| {
            let replicas = ports.iter().map(|&port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
            assert_eq!(Holders::parse(text), Some(Holders { replicas, is_settled }), "{text}");
        };
        check("127.0.0.1:1 replica\n127.0.0.1:2 replica\n", &[1, 2], true);
        check("127.0.0.1:1 replica\n127.0.0.1:2 absent-replica\n", &[1, 2], false);
        check("127.0.0.1:1 replica\n127.0.0.1:2 stand-in\n", &[1], false);
        check("127.0.0.1:1 replica\n127.0.0.1:2 former\n", &[1], false);
        assert_eq!(Holders::parse("somewhere replica"), None);
        assert_eq!(Holders::parse("127.0.0.1:1"), None);
        assert_eq!(Holders::parse("127.0.0.1:1 stand-in\n"), None);
    }
}
