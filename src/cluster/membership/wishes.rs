//! What foca asks of its surroundings, collected until the call is over.

use super::Name;
use super::compare::KIND_FOCA;
use crate::time::Duration;
use foca::{Notification, Timer};
use std::net::SocketAddr;

/// What foca wants done.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) sends: Vec<(SocketAddr, Vec<u8>)>,
    pub(super) timers: Vec<(Duration, Timer<Name>)>,
    /// Somebody came, went or changed its generation.
    pub(super) changed: bool,
    /// This node has just found the others, or has come back under a new generation.
    pub(super) arrived: bool,
    pub(super) rejoined: bool,
}

impl foca::Runtime<Name> for Wishes {
    fn notify(&mut self, notification: Notification<'_, Name>) {
        self.changed = true;
        match notification {
            Notification::Active => self.arrived = true,
            Notification::Rejoin(_) => self.rejoined = true,
            Notification::MemberUp(_)
            | Notification::MemberDown(_)
            | Notification::Rename(..)
            | Notification::Idle
            | Notification::Defunct => {}
        }
    }

    fn send_to(&mut self, to: Name, data: &[u8]) {
        let mut packet = Vec::with_capacity(data.len() + 1);
        packet.push(KIND_FOCA);
        packet.extend_from_slice(data);
        self.sends.push((to.address, packet));
    }

    fn submit_after(&mut self, event: Timer<Name>, after: Duration) {
        self.timers.push((after, event));
    }
}
