//! Every count that a node keeps, one line each: name, unit, sentence.
//!
//! Counts are kept on one [`Sheet`] per thread, written without contention and summed when read
//! ([`Metrics::total`]). The *loss ledger* is the part of them that must add up: every request that
//! enters (a client's datagram or a forwarded one) is answered, passed on, still in progress, or
//! counted under exactly one reason. See "The loss ledger" in ARCHITECTURE.md.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! metrics {
    ($( $group:ident { $( $variant:ident $name:literal $unit:literal $doc:literal )* } )*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(usize)]
        pub enum Metric { $( $( #[doc = $doc] $variant, )* )* }

        impl Metric {
            /// Every metric, in the order of this file.
            pub const ALL: &'static [Self] = &[ $( $( Self::$variant, )* )* ];

            /// The name under which it is exposed.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( $( Self::$variant => $name, )* )* }
            }

            /// What one count means.
            #[must_use]
            pub const fn unit(self) -> &'static str {
                match self { $( $( Self::$variant => $unit, )* )* }
            }

            /// One sentence.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $( $( Self::$variant => $doc, )* )* }
            }

            /// Its place in the ledger.
            #[must_use]
            pub const fn group(self) -> Group {
                match self { $( $( Self::$variant => Group::$group, )* )* }
            }
        }
    };
}

/// The part of the books a metric belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Requests that entered: the left side of the loss ledger.
    Entered,
    /// Requests that were answered or passed on: right side of the ledger.
    Settled,
    /// Requests that were dropped, by reason: right side of the ledger.
    Lost,
    /// Datagrams between members that were dropped, by reason.
    PeerLost,
    /// Everything else.
    Other,
}

metrics! {
    Entered {
        ClientDatagrams "client_datagrams" "datagrams" "Datagrams received that are no frames of members."
        ForwardsReceived "forwards_received" "requests" "Requests received from another member's front end."
    }
    Settled {
        Answered "answered" "requests" "Requests answered by this node, errors included."
        Forwarded "forwarded" "requests" "Requests passed on to another member, which answers."
        Delegated "delegated" "requests" "Reads that another member answered directly."
    }
    Lost {
        DroppedTooShort "dropped_too_short" "datagrams" "Shorter than the smallest request."
        DroppedChecksum "dropped_checksum" "datagrams" "Envelopes with a wrong checksum."
        DroppedNotProtobuf "dropped_not_protobuf" "datagrams" "No envelope, on a port that takes nothing else."
        DroppedTruncated "dropped_truncated" "datagrams" "Longer than the receive buffer."
        DroppedOld "dropped_old" "requests" "Older than the patience of a client when their turn came."
        DroppedFromMember "dropped_from_member" "datagrams" "No frames, but from a member's address: answering could go on for ever."
        DroppedFenced "dropped_fenced" "requests" "Arrived while this node fenced itself after a gap in time."
        DroppedDuplicate "dropped_duplicate" "requests" "Repeats of a request that is still being worked on."
        DroppedUnavailable "dropped_unavailable" "requests" "Reads and writes that too few members answered in time."
        DroppedHops "dropped_hops" "requests" "Forwarded too often: members disagree on who is responsible."
        DroppedPanic "dropped_panic" "requests" "Jobs that ended in a panic; a defect."
        ShedFull "shed_full" "datagrams" "Refused because the job channel was full."
        ShedPending "shed_pending" "requests" "Refused because the table of operations in progress was full."
        ShedPeerFull "shed_peer_full" "requests" "Refused because too many operations wait for a member that they need."
    }
    PeerLost {
        PeerForged "peer_forged" "frames" "Frames with a wrong MAC."
        PeerMalformed "peer_malformed" "frames" "Authentic frames that cannot be decoded."
        PeerReplayed "peer_replayed" "frames" "Frames seen before, or too far out of order."
        PeerStale "peer_stale" "frames" "Frames that were on their way for too long."
        PeerUnknown "peer_unknown" "frames" "Authentic frames of a process that is no member, or an older start of one."
        PeerFenced "peer_fenced" "frames" "Arrived while this node fenced itself after a gap in time."
        PeerUnexpected "peer_unexpected" "frames" "Acknowledgements of operations that are over."
        PeerShed "peer_shed" "frames" "Refused because the job channel was full."
        GossipRejected "gossip_rejected" "frames" "Membership frames that could not be used."
    }
    Other {
        PeerDatagrams "peer_datagrams" "frames" "Frames received from members on the peer lane."
        GossipDatagrams "gossip_datagrams" "frames" "Frames received on the gossip lane."
        RequestsPut "requests_put" "requests" "PUT requests decoded from clients."
        RequestsGet "requests_get" "requests" "GET requests decoded from clients."
        RequestsRemove "requests_remove" "requests" "REMOVE requests decoded from clients."
        RequestsOther "requests_other" "requests" "Other requests decoded from clients."
        RepliesRepeated "replies_repeated" "requests" "Repeats answered from the reply cache."
        RepliesProxied "replies_proxied" "replies" "Replies sent through the front end for the client's sake."
        RepliesForeign "replies_foreign" "replies" "Replies of other members that this front end passed on to a client."
        RefusedSpace "refused_space" "requests" "PUTs refused because the memory limit is reached."
        WritesCoordinated "writes_coordinated" "requests" "PUTs and REMOVEs that this node coordinated."
        WritesApplied "writes_applied" "writes" "Replicated writes applied here for other coordinators."
        WritesUndone "writes_undone" "writes" "Writes taken back because a replica had no space."
        ReadsHedged "reads_hedged" "requests" "Reads sent to a second replica because the first was late."
        Retransmissions "retransmissions" "frames" "Reads, writes, undos and questions about repeats that were sent again to a member, because its answer was missing or said nothing; background repair is not in it."
        HedgesRefused "hedges_refused" "requests" "Late reads that were not sent to a second replica because of the budget."
        ReadsServed "reads_served" "requests" "Reads served here for other front ends."
        HintsInherited "hints_inherited" "hints" "Hints whose owner is not coming back; the copy is handed to its heirs."
        Compares "compares" "partitions" "Partitions compared with another owner."
        RepairPulls "repair_pulls" "pulls" "Partition copies or repairs begun."
        RepairPullsFailed "repair_pulls_failed" "pulls" "Partition copies or repairs that broke off; they are tried again."
        RepairRecords "repair_records" "records" "Records taken over from another owner because they were missing or older here."
        ReadRepairs "read_repairs" "records" "Records sent to a replica that a read found without them."
        ReadRepairsSkipped "read_repairs_skipped" "records" "Replicas that a read found without a record, left to anti-entropy because of the budget."
        PartitionsForgotten "partitions_forgotten" "partitions" "Partitions that this node no longer owns, dropped after all owners had them."
        HintsKept "hints_kept" "hints" "Writes kept for an absent replica."
        HintsDelivered "hints_delivered" "hints" "Kept writes that their owner has acknowledged."
        HintsDropped "hints_dropped" "hints" "Kept writes given up: too old, or the table was full."
        Rejoins "rejoins" "times" "Times this node heard the others again after it was cut off from most of them."
        RequestsHeld "requests_held" "requests" "Requests that waited while this node, cut off, asked whether it still is."
        Fences "fences" "times" "Times this node fenced itself after a gap in time."
        FenceMillis "fence_millis" "ms" "Time spent fenced or catching up."
        ViewsPublished "views_published" "views" "Cluster views published by the controller."
        StoodAside "stood_aside" "times" "Times this node gave way because others said that it is late."
        ProbesSent "probes_sent" "frames" "Probes of members that this node finds late."
        PeerSuspicions "peer_suspicions" "times" "Times a silent member was bypassed before gossip called it down."
        Panics "panics" "jobs" "Jobs that ended in a panic; a defect."
        BatchesInline "batches_inline" "batches" "Receive batches that the listener worked off itself."
        BatchesQueued "batches_queued" "batches" "Receive batches handed to the workers."
        BulkAccepted "bulk_accepted" "connections" "Bulk connections that others opened."
        BulkRefusedFull "bulk_refused_full" "connections" "Bulk connections refused because there were too many, of all or of one member."
        BulkRefusedUnknown "bulk_refused_unknown" "connections" "Bulk connections closed because their authentic asker is no member."
        BulkForged "bulk_forged" "connections" "Bulk connections closed because of a wrong hello or MAC."
        BulkTooLarge "bulk_too_large" "connections" "Bulk connections closed because of a frame that was or would be too long."
        BulkMalformed "bulk_malformed" "connections" "Bulk connections closed because of an authentic request without meaning."
        BulkTimedOut "bulk_timed_out" "connections" "Bulk connections closed because the other side was too slow (idle ones not included)."
        BulkServed "bulk_served" "requests" "Bulk requests of others whose response was sent."
        BulkAsked "bulk_asked" "requests" "Bulk requests that this node wanted to ask."
        BulkFailed "bulk_failed" "requests" "Bulk requests of this node that got no response."
        BulkBytesIn "bulk_bytes_in" "bytes" "Received by the bulk transport."
        BulkBytesOut "bulk_bytes_out" "bytes" "Sent by the bulk transport."
        SendsFailed "sends_failed" "datagrams" "Datagrams that the kernel refused to send."
        SendBytes "send_bytes" "bytes" "Payload bytes sent."
        SendDatagrams "send_datagrams" "datagrams" "Datagrams sent."
        KernelDrops "kernel_drops" "datagrams" "Datagrams lost in full receive buffers, as the kernel reports them."
    }
}

/// One thread's counts.
#[derive(Debug)]
pub struct Sheet(Vec<AtomicU64>);

impl Sheet {
    fn new() -> Self {
        Self(Metric::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds to a count. Only the sheet's own thread may call this: it is a load and a store.
    pub fn add(&self, metric: Metric, amount: u64) {
        let count = &self.0[metric as usize];
        count.store(count.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

/// All sheets of a node.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Vec<Arc<Sheet>>>);

impl Metrics {
    /// A new sheet, for a thread that starts.
    pub fn sheet(&self) -> Arc<Sheet> {
        let sheet = Arc::new(Sheet::new());
        self.0.lock().push(Arc::clone(&sheet));
        sheet
    }

    /// A count, over all threads.
    #[must_use]
    pub fn total(&self, metric: Metric) -> u64 {
        self.0.lock().iter().map(|sheet| sheet.0[metric as usize].load(Ordering::Relaxed)).sum()
    }

    /// The sum of a group of counts, over all threads.
    #[must_use]
    pub fn group_total(&self, group: Group) -> u64 {
        Metric::ALL.iter().filter(|metric| metric.group() == group).map(|metric| self.total(*metric)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_summed_and_names_are_unique() {
        let metrics = Metrics::default();
        let (a, b) = (metrics.sheet(), metrics.sheet());
        a.add(Metric::Answered, 2);
        b.add(Metric::Answered, 3);
        b.add(Metric::Forwarded, 1);
        assert_eq!(metrics.total(Metric::Answered), 5);
        assert_eq!(metrics.group_total(Group::Settled), 6);
        let mut names: Vec<_> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Metric::ALL.len());
    }
}
