//! Sending frames to members: addressing, sequence numbers, sealing.

use super::{ClusterView, FrameLane};
use crate::ids::{Generation, MemberId};
use crate::outbox::{Lane, Outbox};
use crate::peer::message::answered::push_answered;
use crate::peer::{Envelope, FrameKey, Message, Standing};
use crate::time::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// This process as a sender of peer frames.
#[derive(Clone, Debug)]
pub struct Link {
    me: MemberId,
    generation: Generation,
    key: FrameKey,
    /// What is said of this node in every frame ([`Standing`], packed).
    standing: Arc<AtomicU64>,
}

impl Link {
    /// The link of this start of this member.
    #[must_use]
    pub fn new(me: MemberId, generation: Generation, cluster_key: &[u8; 32]) -> Self {
        Self { me, generation, key: FrameKey::peer(cluster_key), standing: Arc::default() }
    }

    /// The key that frames are sealed with.
    #[must_use]
    pub fn key(&self) -> &FrameKey {
        &self.key
    }

    /// Changes what is said of this node in every frame.
    pub fn say(&self, standing: Standing) {
        self.standing.store(standing.pack(), Ordering::Release);
    }

    /// What is said of this node.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::unpack(self.standing.load(Ordering::Acquire))
    }

    /// Sends a message to the member with this index in the view.
    pub fn send(
        &self,
        now: Instant,
        view: &ClusterView,
        to: u16,
        message: &Message<'_>,
        outbox: &mut Outbox,
    ) {
        let member = view.member(to);
        if message.wants_answer() {
            member.peer.note_asked(now);
        }
        let envelope = Envelope {
            sender: self.me,
            generation: self.generation,
            sequence: member.peer.next_sequence(FrameLane::Peer),
            sent_at: now,
            standing: self.standing(),
        };
        let lane = match message {
            Message::Forward { .. } | Message::Reply { .. } => Lane::Forwarding,
            Message::Write { .. }
            | Message::Stored { .. }
            | Message::Undo { .. }
            | Message::Undone { .. }
            | Message::Read { .. }
            | Message::ReadHit { .. }
            | Message::ReadMiss { .. }
            | Message::ReadValue { .. }
            | Message::ReadRecord { .. }
            | Message::Hint { .. }
            | Message::HintStored { .. }
            | Message::CatchUp { .. }
            | Message::HintsLeft { .. }
            | Message::Recall { .. }
            | Message::Recalled { .. }
            | Message::Settled { .. }
            | Message::Compare { .. }
            | Message::Compared { .. }
            | Message::Covered { .. }
            | Message::Mend { .. }
            | Message::Ping
            | Message::Pong
            | Message::Probe { .. }
            | Message::Echo { .. } => Lane::Replication,
        };
        let answered = member.peer.take_answered(now);
        outbox.send(lane, member.address, |out| {
            self.key.seal(member.id, &envelope, out, |out| {
                push_answered(out, answered.into_iter());
                message.encode(out);
            });
        });
    }
}
