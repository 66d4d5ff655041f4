//! Asking the right member first: a client that knows who holds which key saves the hop from one that does not.
//!
//! [`ZeroHop`] is what such a client remembers, without sockets and clocks: the table ([`Placement`]), who has been
//! silent lately, and whether the table is in doubt. Writes go to the first replica, which coordinates them; reads to
//! any. Members that are down or silent come last, and each retry goes to the next, with the same id and the same bytes:
//! every member takes every request and the record of its execution lives with the key's owners, so nothing depends on
//! the table being right. It is in doubt when somebody else answers than was asked or when somebody is silent; then it
//! is asked for again, but not more often than a pause allows that doubles as long as the answer brings nothing new.
//!
//! The rest of this file is the part of the blocking [`Client`] that uses it ([`Client::with_zero_hop`]).
//!
//! Deliberately not here: a background thread. A table is asked for before a request, which then takes a few round trips
//! longer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::blocking::{Client, Error, Told, succeed};
use crate::exchange::{Reply, RetryPolicy};
use crate::placement::{Pages, Placement, stored_key};
use crate::wire::placement::Page;
use crate::wire::{Key, Operation};

/// A table that nobody doubts is asked for again after this long: a member may have become alive or empty.
const AGE_MAX: Duration = Duration::from_secs(30);
/// A table in doubt is asked for again after this long at least …
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// … and after this long when asking has brought nothing new for a while.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Who has been silent is asked last for this long.
const SILENT_FOR: Duration = Duration::from_secs(3);
/// Servers that are asked for the table, one after the other, before it is given up for now.
const TELLERS_MAX: usize = 3;
/// How long each of them has for a page. Requests wait meanwhile.
const PAGE_WAITS: [Duration; 3] =
    [Duration::from_millis(150), Duration::from_millis(450), Duration::from_millis(900)];
/// Pages that are asked of one server: more than twice those of the largest table.
const PAGES_MAX: usize = 768;

/// What a client knows of the way to the members.
#[derive(Clone, Debug)]
pub struct ZeroHop {
    placement: Option<Placement>,
    /// When the table was last asked for.
    asked_at: Option<Duration>,
    is_doubted: bool,
    pause: Duration,
    /// Members that have not answered, and until when that counts.
    silent_until: BTreeMap<SocketAddr, Duration>,
}

impl Default for ZeroHop {
    fn default() -> Self {
        Self {
            placement: None,
            asked_at: None,
            is_doubted: false,
            pause: PAUSE_MIN,
            silent_until: BTreeMap::new(),
        }
    }
}

impl ZeroHop {
    /// The table, once it is known.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// Whether the table should be asked for now.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        let wait = if self.is_doubted || self.placement.is_none() { self.pause } else { AGE_MAX };
        self.asked_at.is_none_or(|asked_at| asked_at + wait <= now)
    }

    /// The table, as it was just told.
    pub fn on_learned(&mut self, now: Duration, placement: Placement) {
        let is_news = self.placement.as_ref() != Some(&placement);
        self.note_asked(now, is_news);
        self.is_doubted = false;
        self.placement = Some(placement);
    }

    /// Nobody has told a table. The old one stays in use.
    pub fn on_untold(&mut self, now: Duration) {
        self.note_asked(now, false);
    }

    fn note_asked(&mut self, now: Duration, is_news: bool) {
        // The first answer is news in any case; what follows it shows whether the doubts are good for anything.
        self.pause = if is_news { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        self.asked_at = Some(now);
    }

    /// The members to ask for a key (as it stands in the store), in this order; none while no table is known. `draw`
    /// is a random number: reads are spread by it.
    #[must_use]
    pub fn targets(&self, now: Duration, key: &[u8], is_write: bool, draw: usize) -> Vec<SocketAddr> {
        let Some(placement) = &self.placement else { return Vec::new() };
        let mut replicas = placement.replicas(key).to_vec();
        if !is_write {
            let first = draw % replicas.len().max(1);
            replicas.rotate_left(first);
        }
        let member = |number: &u16| placement.members()[usize::from(*number)];
        // Stable: among those in reach the order stays.
        replicas
            .sort_by_key(|number| !member(number).is_alive || self.is_silent(now, member(number).address));
        replicas.iter().map(|number| member(number).address).collect()
    }

    fn is_silent(&self, now: Duration, member: SocketAddr) -> bool {
        self.silent_until.get(&member).is_some_and(|until| now < *until)
    }

    /// A request is over, for which these members were asked, one after the other, and this one has answered.
    pub fn on_end(&mut self, now: Duration, asked: &[SocketAddr], answered_by: Option<SocketAddr>) {
        // The last one asked has had no time to be silent when another has answered.
        let silent = if answered_by.is_some() { asked.len().saturating_sub(1) } else { asked.len() };
        self.silent_until.retain(|_, until| now < *until);
        for member in asked[..silent].iter().filter(|member| Some(**member) != answered_by) {
            self.silent_until.insert(*member, now + SILENT_FOR);
            self.is_doubted = true;
        }
        if let Some(member) = answered_by {
            self.silent_until.remove(&member);
            self.is_doubted |= !asked.contains(&member);
        }
    }
}

impl Client {
    /// Learns who holds which key and asks the right member first, instead of a random server of the list. Only Violet
    /// tells; where nobody does, everything stays as it was. A table costs some round trips now and then, so this is for
    /// clients that ask more than a few times.
    #[must_use]
    pub fn with_zero_hop(mut self) -> Self {
        self.zero_hop = Some(ZeroHop::default());
        self
    }

    /// The table in use, if any.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.zero_hop.as_ref().and_then(ZeroHop::placement)
    }

    /// Asks a server who holds which key.
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::Incomplete`] also when what it says is no table, or changes all the time.
    pub fn fetch_placement(&mut self, server: SocketAddr) -> Result<Placement, Error> {
        let policy = RetryPolicy { waits: PAGE_WAITS.to_vec(), ..RetryPolicy::once(Duration::ZERO) };
        let mut pages = Pages::default();
        for _ in 0..PAGES_MAX {
            let operation = Operation::GetPlacement { offset: pages.wanted() };
            let reply = self.ask_patiently(server, operation, &policy)?;
            succeed(server, &reply)?;
            let field = reply.value.unwrap_or_default();
            let page = Page::decode(&field).map_err(|_| Error::Incomplete(server))?;
            // When the pages do not fit together somebody came or went meanwhile: from the beginning.
            if let Ok(Some(placement)) = pages.take(&page) {
                return Ok(placement);
            }
        }
        Err(Error::Incomplete(server))
    }

    /// Asks the members that hold a key, the best one first, and other servers when all of them are silent.
    pub(crate) fn ask_holders(
        &mut self,
        operation: Operation<'_>,
        key: &Key,
    ) -> Result<(SocketAddr, Reply), Error> {
        self.refresh_placement();
        let is_write = matches!(
            operation,
            Operation::Put { .. } | Operation::Remove { .. } | Operation::PutWithContext { .. }
        );
        let key = stored_key(self.format(), key);
        let (now, draw) = (self.now(), self.random_below(usize::MAX));
        let zero_hop = self.zero_hop.as_ref();
        let mut targets =
            zero_hop.map_or_else(Vec::new, |known| known.targets(now, key.as_bytes(), is_write, draw));
        let (first, second) = self.two_servers();
        targets.extend(std::iter::once(first).chain(second));
        if !self.tries_second_server() {
            targets.truncate(1);
        }
        let id = self.draw_id();
        let mut told = self.ask_in_turn(targets, id, operation);
        if matches!(told.result, Err(Error::TimedOut { .. })) && self.tries_second_server() {
            // As every client it tries once more, with the same id, elsewhere first.
            self.note_told(&told);
            let (first, second) = self.two_servers();
            let (now, zero_hop) = (self.now(), self.zero_hop.as_ref());
            let holders =
                zero_hop.map_or_else(Vec::new, |known| known.targets(now, key.as_bytes(), is_write, draw));
            let targets = std::iter::once(first).chain(holders).chain(second).collect();
            told = self.ask_in_turn(targets, told.id, operation);
        }
        self.note_told(&told);
        let server = told.answered_by.or(told.asked.last().copied()).unwrap_or(first);
        Ok((server, told.result?))
    }

    fn note_told(&mut self, told: &Told) {
        let now = self.now();
        if let Some(known) = &mut self.zero_hop {
            known.on_end(now, &told.asked, told.answered_by);
        }
    }

    /// Asks for the table if that is due.
    fn refresh_placement(&mut self) {
        let now = self.now();
        if !self.zero_hop.as_ref().is_some_and(|known| known.is_due(now)) {
            return;
        }
        let tellers = self.tellers();
        let told = tellers.into_iter().find_map(|server| self.fetch_placement(server).ok());
        let now = self.now();
        match (&mut self.zero_hop, told) {
            (Some(known), Some(placement)) => known.on_learned(now, placement),
            (Some(known), None) => known.on_untold(now),
            (None, _) => {}
        }
    }

    /// Whom to ask for the table: servers of the list, and members of the old table in case that the list is out of date.
    fn tellers(&mut self) -> Vec<SocketAddr> {
        let (first, second) = self.two_servers();
        let mut tellers: Vec<SocketAddr> = std::iter::once(first).chain(second).collect();
        let (now, draw) = (self.now(), self.random_below(usize::MAX));
        if let Some(known) = &self.zero_hop {
            let members = known.placement().map_or(&[][..], Placement::members);
            let in_reach: Vec<SocketAddr> = members
                .iter()
                .filter(|member| member.is_alive && !known.is_silent(now, member.address))
                .map(|member| member.address)
                .collect();
            tellers.extend(in_reach.get(draw % in_reach.len().max(1)));
            tellers.sort_by_key(|server| known.is_silent(now, *server));
        }
        tellers.dedup();
        tellers.truncate(TELLERS_MAX);
        tellers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tests::placement;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn member(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn ports(targets: &[SocketAddr]) -> Vec<u16> {
        targets.iter().map(SocketAddr::port).collect()
    }

    /// Keys of the first partition, which members 1, 2 and 3 hold.
    fn key() -> Vec<u8> {
        let all = placement(5, 3, 1, 0);
        let mut keys = (0..100_u32).map(|number| number.to_le_bytes().to_vec());
        keys.find(|key| all.replicas(key)[0] == 0).unwrap()
    }

    fn knowing(placement: Placement) -> ZeroHop {
        let mut known = ZeroHop::default();
        known.on_learned(at(0), placement);
        known
    }

    #[test]
    fn writes_go_to_the_coordinator_and_reads_to_all_replicas() {
        let known = knowing(placement(5, 3, 1, 0));
        for draw in 0..6 {
            assert_eq!(ports(&known.targets(at(1), &key(), true, draw)), [1, 2, 3]);
        }
        let firsts: Vec<u16> =
            (0..6).map(|draw| ports(&known.targets(at(1), &key(), false, draw))[0]).collect();
        assert_eq!(firsts, [1, 2, 3, 1, 2, 3]);
        assert_eq!(ZeroHop::default().targets(at(1), &key(), true, 0), []);
    }

    #[test]
    fn who_is_down_or_silent_comes_last_for_a_while() {
        let known = knowing(placement(3, 3, 1, 1));
        assert_eq!(ports(&known.targets(at(1), &key(), false, 2)), [1, 2, 3]);
        let mut known = knowing(placement(5, 3, 1, 0));
        known.on_end(at(10), &[member(1), member(2)], Some(member(2)));
        assert_eq!(ports(&known.targets(at(11), &key(), true, 0)), [2, 3, 1]);
        let later = at(10) + SILENT_FOR;
        assert_eq!(ports(&known.targets(later, &key(), true, 0)), [1, 2, 3]);
        known.on_end(at(20), &[member(1)], None);
        known.on_end(at(30), &[member(1)], Some(member(1)));
        assert_eq!(ports(&known.targets(at(31), &key(), true, 0)), [1, 2, 3], "it was heard");
    }

    #[test]
    fn a_late_answer_is_no_silence_of_who_was_asked_last() {
        let mut known = knowing(placement(5, 3, 1, 0));
        known.on_end(at(10), &[member(1), member(2)], Some(member(1)));
        assert_eq!(ports(&known.targets(at(11), &key(), true, 0)), [1, 2, 3]);
        assert!(!known.is_due(at(10_000)));
    }

    #[test]
    fn a_table_is_asked_for_when_it_is_unknown_old_or_in_doubt() {
        let mut known = ZeroHop::default();
        assert!(known.is_due(at(0)));
        known.on_untold(at(0));
        assert!(!known.is_due(at(0)) && known.is_due(2 * PAUSE_MIN));
        known.on_learned(at(1_000), placement(5, 3, 1, 0));
        assert!(!known.is_due(at(1_000) + PAUSE_MAX));
        assert!(known.is_due(at(1_000) + AGE_MAX));
        known.on_end(at(1_100), &[member(1)], Some(member(1)));
        assert!(!known.is_due(at(2_000)), "all is well");
        known.on_end(at(1_100), &[member(1)], Some(member(4)));
        assert!(!known.is_due(at(1_100)) && known.is_due(at(1_000) + PAUSE_MIN));
    }

    #[test]
    fn doubts_that_lead_nowhere_are_followed_less_and_less() {
        let mut known = knowing(placement(5, 3, 1, 0));
        let (mut now, mut asked) = (at(0), 0);
        // Every answer comes from somewhere else, as behind an address translator.
        while now < Duration::from_secs(60) {
            now += at(10);
            known.on_end(now, &[member(1)], Some(member(9)));
            if known.is_due(now) {
                asked += 1;
                known.on_learned(now, placement(5, 3, 1, 0));
            }
        }
        assert!((8..=12).contains(&asked), "{asked} times in a minute");
        known.on_learned(now, placement(5, 3, 2, 0));
        known.on_end(now, &[member(1)], Some(member(9)));
        assert!(known.is_due(now + PAUSE_MIN), "news make it quick again");
    }
}
