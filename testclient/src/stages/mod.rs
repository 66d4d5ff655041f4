//! The conformance stages, in the order in which they run, and what each needs.

mod at_most_once;
mod basics;
mod capacity;
mod consistency;
mod faults;
mod identity;
mod limits;
mod malformed;
mod siblings;
mod wipeout;

use violet_client::Format;

use crate::cluster::{Cluster, Finding, StageResult};

/// What a stage asks of the cluster and of the person who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it leaves the cluster whole.
    Nothing,
    /// `--suspend`.
    Suspend,
    /// `--destructive`.
    Destructive,
}

/// One conformance stage.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// The only format that it makes sense in; `None` for both.
    pub only: Option<Format>,
    /// The switch that it needs.
    pub needs: Needs,
    /// Does it.
    pub run: fn(&mut Cluster) -> StageResult,
}

const fn stage(name: &'static str, about: &'static str, run: fn(&mut Cluster) -> StageResult) -> Stage {
    Stage { name, about, only: None, needs: Needs::Nothing, run }
}

impl Stage {
    const fn only(mut self, format: Format) -> Self {
        self.only = Some(format);
        self
    }

    const fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Why this stage is not run; `None` when it is.
    pub fn reason_to_skip(&self, cluster: &Cluster) -> Option<Finding> {
        let skip = |text: &str| Some(Finding::Skip(text.to_owned()));
        match (self.only, self.needs) {
            (Some(only), _) if only != cluster.format => skip("not in this format"),
            (_, Needs::Suspend) if !cluster.options.suspend => skip("needs --suspend"),
            (_, Needs::Destructive) if !cluster.options.destructive => skip("needs --destructive"),
            _ => None,
        }
    }
}

/// All stages. The first decides whether the others are worth while; what harms the cluster comes last.
pub const STAGES: &[Stage] = &[
    stage("alive", "every server answers a sign of life", basics::alive),
    stage(
        "reply-form",
        "one reply per datagram, with the request's id and all that old clients insist on",
        identity::reply_form,
    ),
    stage("loss", "hardly any request is lost when little is asked", identity::loss),
    stage("wipeout", "wipe-outs in parallel leave nothing, and nothing returns", wipeout::wipeout),
    stage("wipeout-retry", "a repeated wipe-out does not delete fresh data", wipeout::retry),
    stage(
        "basics-first",
        "PUT GET REMOVE GET with small to largest values through the first server",
        basics::through_first,
    ),
    stage("basics-random", "the same through random servers", basics::through_random),
    stage("versions", "any version is kept, and the latest PUT wins whatever its version", basics::versions)
        .only(Format::Protobuf),
    stage("overwrite", "a second PUT replaces the first, longer or shorter", basics::overwrite),
    stage("remove", "a removed key is gone, and removing it again says so", basics::remove),
    stage("empty-value", "an empty value: stored in protobuf, refused with 6 in raw", limits::empty_value),
    stage("invalid-command", "unknown commands get code 5", basics::invalid_command),
    stage("key-limits", "keys of 1 and 32 bytes work, longer ones get code 6", limits::keys),
    stage("value-limits", "the longest value works, longer ones get 7 (protobuf) or 6 (raw)", limits::values),
    stage("malformed", "damaged, cut, padded and random datagrams do no harm", malformed::malformed),
    stage("at-most-once", "a repeated request is not executed again: same socket", at_most_once::same_socket),
    stage("at-most-once-port", "the same from a new source port", at_most_once::new_port),
    stage("at-most-once-server", "the same through another server", at_most_once::other_server),
    stage("at-most-once-later", "the same two seconds later, all three ways", at_most_once::later),
    stage("at-most-once-busy", "the same after a thousand other PUTs", at_most_once::after_many_puts),
    stage(
        "at-most-once-racing",
        "a request that comes twice at the same moment is executed once",
        at_most_once::racing,
    ),
    stage("id-reuse", "other bytes under a used id are another request", at_most_once::id_reuse),
    stage(
        "read-your-writes",
        "PUT, overwrite and REMOVE are seen at once through every server",
        consistency::read_your_writes,
    ),
    stage(
        "crash-test",
        "PUT and GET clients against REMOVE and WIPEOUT clients: no wrong value, all survive",
        consistency::crash_test,
    ),
    stage("pid", "GETPID is each server's own process", identity::pid),
    stage("membership-count", "every server counts exactly the live servers", identity::membership_count),
    stage("membership-list", "optional extra: the member list (0x22)", identity::membership_list),
    stage("stats", "optional extra: the statistics (0x23)", identity::stats),
    stage(
        "siblings",
        "optional extra: concurrent values stay until somebody has seen them (0x25, 0x26)",
        siblings::siblings,
    ),
    stage("siblings-large", "optional extra: the same with 45,000 bytes in one reply", siblings::large),
    stage(
        "suspend",
        "no acknowledged write lost or stale while servers are stopped and after they resume",
        faults::suspend,
    )
    .needs(Needs::Suspend),
    stage("capacity", "out of space is said, survived, and ends with removals", capacity::capacity)
        .needs(Needs::Destructive),
    stage("crash", "no acknowledged write lost or stale when servers die under load", faults::crash)
        .needs(Needs::Destructive),
];
