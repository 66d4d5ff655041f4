//! A read in progress: who was asked, what was said, and what follows from it.
//!
//! [`ReadOp::decide`] holds the rules and touches nothing.

use super::{Client, Few};
use crate::ids::{MemberId, RequestKey, Version};
use crate::peer::ReadRole;
use crate::time::Instant;
use smallvec::smallvec;
use violet_client::Key;

/// A read that waits for replicas.
#[derive(Clone, Debug)]
pub struct ReadOp {
    pub(super) client: Client,
    pub(super) key: Key,
    pub(super) request: RequestKey,
    pub(super) role: ReadRole,
    pub(super) quorum: bool,
    pub(super) started: Instant,
    /// How many of the asked say for sure that a key is missing.
    pub(super) majority: usize,
    /// The newest removal that was told by members that cannot know the rest: nothing older is an answer.
    pub(super) removed: Version,
    pub(super) asked: Few<Asked>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) member: MemberId,
    pub(super) primary: bool,
    /// It is an owner in the oldest layout that is being replaced.
    pub(super) oldest: bool,
    pub(super) state: AskedState,
    /// When the question that is open was asked.
    pub(super) at: Instant,
}

/// A version that a member said it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) member: MemberId,
    pub(super) primary: bool,
    pub(super) version: Version,
    /// A removal, or nothing at all.
    pub(super) removed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedState {
    Not,
    /// Asked, in this role, and silent so far.
    Waiting(ReadRole),
    /// Asked for the value and late: somebody else is asked too.
    Late,
    Hit(Version),
    /// No value; the version of the removal it remembers, if any.
    Missed(Version),
    /// It cannot know.
    Unknown,
}

impl Asked {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, AskedState::Waiting(_) | AskedState::Late)
    }

    /// It owns the key, in the layout in force or in the oldest one that is being replaced.
    fn is_replica(&self) -> bool {
        self.primary || self.oldest
    }
}

/// What to do next for a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Wait,
    /// Ask the first for the value, the others for their versions.
    Ask(Few<MemberId>),
    NoSuchKey,
}

impl ReadOp {
    pub(super) fn decide(&self) -> Decision {
        let of_state =
            |wanted: fn(AskedState) -> bool| self.asked.iter().filter(move |asked| wanted(asked.state));
        let body = |state| matches!(state, AskedState::Waiting(ReadRole::Answer | ReadRole::Return));
        if of_state(body).next().is_some() {
            return Decision::Wait;
        }
        let known = of_state(|state| matches!(state, AskedState::Hit(_) | AskedState::Missed(_))).count();
        let waiting = of_state(|state| matches!(state, AskedState::Waiting(_))).next().is_some();
        let late = of_state(|state| state == AskedState::Late).next().is_some();
        if self.quorum && known < self.majority {
            return if waiting { Decision::Wait } else { self.ask_the_rest() };
        }
        if let Some((member, version)) = self.newest_hit()
            && self.removed() < version
        {
            // Who stands in may keep something old from the last time: replicas come first.
            let replicas = || self.asked.iter().filter(|asked| asked.is_replica());
            if !replicas().any(|asked| asked.member == member) {
                if replicas().any(|asked| matches!(asked.state, AskedState::Waiting(_))) {
                    return Decision::Wait;
                }
                if replicas().any(|asked| asked.state == AskedState::Not) {
                    return self.ask_the_rest();
                }
                if self.may_be_old(member) {
                    return Decision::Wait;
                }
            }
            return Decision::Ask(smallvec![member]);
        }
        if self.quorum && self.newest_hit().is_some() {
            return Decision::NoSuchKey;
        }
        if of_state(|state| state == AskedState::Not).next().is_some() {
            return self.ask_the_rest();
        }
        if waiting || late || !self.may_say_missing() {
            return Decision::Wait;
        }
        Decision::NoSuchKey
    }

    fn ask_the_rest(&self) -> Decision {
        let rest: Few<MemberId> = self
            .asked
            .iter()
            .filter(|asked| asked.state == AskedState::Not)
            .map(|asked| asked.member)
            .collect();
        if rest.is_empty() { Decision::Wait } else { Decision::Ask(rest) }
    }

    /// Whether what a member has may be from before it stood in, so that a replica that is catching up has to be
    /// waited for.
    pub(super) fn may_be_old(&self, member: MemberId) -> bool {
        let replicas = || self.asked.iter().filter(|asked| asked.is_replica());
        !replicas().any(|asked| asked.member == member)
            && replicas().any(|asked| asked.state == AskedState::Unknown)
    }

    pub(super) fn newest_hit(&self) -> Option<(MemberId, Version)> {
        let hits = self.asked.iter().filter_map(|asked| match asked.state {
            AskedState::Hit(version) => Some((asked.member, version)),
            AskedState::Not
            | AskedState::Waiting(_)
            | AskedState::Late
            | AskedState::Missed(_)
            | AskedState::Unknown => None,
        });
        hits.max_by_key(|(_, version)| *version)
    }

    /// The newest removal that anyone remembers.
    pub(super) fn removed(&self) -> Version {
        let removals = self.asked.iter().filter_map(|asked| match asked.state {
            AskedState::Missed(removed) => Some(removed),
            AskedState::Not
            | AskedState::Waiting(_)
            | AskedState::Late
            | AskedState::Hit(_)
            | AskedState::Unknown => None,
        });
        removals.max().unwrap_or_default().max(self.removed)
    }

    /// Whether what was said suffices for "no such key", now that all who can be asked have spoken: all
    /// miss, a replica among them; or a majority of the replicas does and the others are catching up. A
    /// majority alone would not do: two replicas that lost their memory must not outvote the third.
    pub(super) fn may_say_missing(&self) -> bool {
        let removed = self.removed();
        // What is older than a removal that somebody remembers is none.
        let missed = |asked: &&Asked| match asked.state {
            AskedState::Missed(_) => true,
            AskedState::Hit(version) => version <= removed,
            AskedState::Not | AskedState::Waiting(_) | AskedState::Late | AskedState::Unknown => false,
        };
        let missing_at =
            |counts: fn(&&Asked) -> bool| self.asked.iter().filter(counts).filter(missed).count();
        let current = missing_at(|asked| asked.primary);
        // Of one layout: those who own nothing in either may have missed because they never knew.
        let oldest = missing_at(|asked| asked.oldest);
        let all = self.asked.iter().all(|asked| missed(&asked));
        self.majority <= current.max(oldest) || (all && 0 < current + oldest)
    }

    /// When the open question to a member was asked, unless it was given up as late.
    pub(super) fn waits_since(&self, member: MemberId) -> Option<Instant> {
        let is_it = |asked: &&Asked| asked.member == member && matches!(asked.state, AskedState::Waiting(_));
        self.asked.iter().find(is_it).map(|asked| asked.at)
    }

    /// What is known of the versions that members hold: who, which, whether that is a removal, and whether
    /// the member is a replica.
    pub(super) fn known(&self) -> impl Iterator<Item = Known> + '_ {
        self.asked.iter().filter_map(|asked| {
            let (version, removed) = match asked.state {
                AskedState::Hit(version) => (version, false),
                AskedState::Missed(version) => (version, true),
                AskedState::Not | AskedState::Waiting(_) | AskedState::Late | AskedState::Unknown => {
                    return None;
                }
            };
            Some(Known { member: asked.member, primary: asked.primary, version, removed })
        })
    }

    /// Which key is read.
    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Notes what is known of a member now; says whether a question to it was open.
    pub(super) fn set(&mut self, member: MemberId, state: AskedState) -> bool {
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.member == member) else { return false };
        let was_open = asked.is_open();
        asked.state = state;
        was_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AskedState::{Hit, Late, Missed, Not, Unknown, Waiting};
    use expect_test::{Expect, expect};
    use violet_client::{Format, MessageId};

    fn at(time: u64) -> Version {
        Version { time, writer: 0 }
    }

    fn read_of(quorum: bool, states: &[AskedState]) -> ReadOp {
        let client = Client {
            address: "127.0.0.1:1".parse().expect("an address"),
            format: Format::Raw,
            id: MessageId([0; 16]),
            front_end: None,
            needs_proxy: false,
        };
        let asked = (1..).zip(states).map(|(id, state)| Asked {
            member: MemberId(id << 48),
            primary: true,
            oldest: false,
            state: *state,
            at: Instant::ZERO,
        });
        ReadOp {
            client,
            key: Key::parse(b"k").expect("short enough"),
            request: RequestKey(0),
            role: ReadRole::Answer,
            quorum,
            started: Instant::ZERO,
            majority: 2,
            removed: Version::default(),
            asked: asked.collect(),
        }
    }

    fn check(quorum: bool, states: &[AskedState], expected: Expect) {
        expected.assert_eq(&format!("{:?}", read_of(quorum, states).decide()));
    }

    #[test]
    fn who_stands_in_does_not_answer_before_a_replica() {
        let check = |replicas: [AskedState; 2], expected: Expect| {
            let mut op = read_of(false, &[replicas[0], replicas[1], Hit(at(5))]);
            op.asked[2].primary = false;
            expected.assert_eq(&format!("{:?}", op.decide()));
        };
        let older = Missed(at(4));
        check([older, Waiting(ReadRole::Confirm)], expect!["Wait"]);
        check([older, Missed(at(6))], expect!["NoSuchKey"]);
        check([older, older], expect!["Ask([m0003])"]);
        check([older, Late], expect!["Ask([m0003])"]);
        check([Late, Late], expect!["Ask([m0003])"]);
        check([older, Not], expect!["Ask([m0002])"]);
        check([older, Unknown], expect!["Wait"]);
        check([Unknown, Unknown], expect!["Wait"]);
    }

    #[test]
    fn a_removal_counts_although_who_remembers_it_is_catching_up() {
        let mut op = read_of(false, &[Unknown, Hit(at(5)), Missed(Version::default())]);
        assert_eq!(op.decide(), Decision::Ask(smallvec![MemberId(2 << 48)]));
        op.removed = at(6);
        assert_eq!(op.decide(), Decision::NoSuchKey, "two of three have nothing newer");
        op.set(MemberId(3 << 48), Hit(at(7)));
        assert_eq!(op.decide(), Decision::Ask(smallvec![MemberId(3 << 48)]));
    }

    #[test]
    fn first_read() {
        let miss = Missed(Version::default());
        let body = Waiting(ReadRole::Answer);
        let version = Waiting(ReadRole::Confirm);
        check(false, &[miss, Not, Not], expect!["Ask([m0002, m0003])"]);
        check(false, &[miss, body, version], expect!["Wait"]);
        check(false, &[miss, miss, version], expect!["Wait"]);
        check(false, &[miss, miss, miss], expect!["NoSuchKey"]);
        check(false, &[miss, Unknown, Unknown], expect!["Wait"]);
        check(false, &[Unknown, miss, miss], expect!["NoSuchKey"]);
        check(false, &[miss, Late, Hit(at(5))], expect!["Ask([m0003])"]);
        check(false, &[miss, Late, miss], expect!["Wait"]);
        check(false, &[Missed(at(6)), Hit(at(5)), Not], expect!["Ask([m0003])"]);
        check(false, &[Missed(at(6)), Hit(at(5)), Hit(at(7))], expect!["Ask([m0003])"]);
        check(false, &[Missed(at(6)), Hit(at(5)), Missed(at(6))], expect!["NoSuchKey"]);
        check(false, &[Missed(at(6)), Hit(at(5)), Late], expect!["Wait"]);
        check(false, &[miss], expect!["NoSuchKey"]);
        check(false, &[], expect!["Wait"]);
    }

    #[test]
    fn quorum_read() {
        let miss = Missed(Version::default());
        let version = Waiting(ReadRole::Confirm);
        check(true, &[Hit(at(5)), version, version], expect!["Wait"]);
        check(true, &[Hit(at(5)), Hit(at(6)), version], expect!["Ask([m0002])"]);
        check(true, &[Hit(at(5)), miss, version], expect!["Ask([m0001])"]);
        check(true, &[Hit(at(5)), Missed(at(6)), version], expect!["NoSuchKey"]);
        check(true, &[miss, miss, version], expect!["Wait"]);
        check(true, &[miss, miss, miss], expect!["NoSuchKey"]);
        check(true, &[miss, Unknown, Unknown], expect!["Wait"]);
    }
}
