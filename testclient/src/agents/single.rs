//! What a crew asks of its agents one by one: stages of `check` of the first, and of each how its machine has been.

use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::crew::{Crew, GREETING_MAX, LOOK, hear};
use super::message::{FromAgent, ToAgent, receive, send};
use crate::interrupt::Stop;
use crate::plan::{CheckOrder, Checked};
use crate::result::Machine;

/// Without word for so long, an agent that runs stages is lost: filling a cluster takes minutes.
const STAGE_MAX: Duration = Duration::from_secs(900);

impl Crew {
    /// Has stages run by the first agent that is there.
    pub(super) fn check_by_one(
        &mut self,
        order: &CheckOrder,
        stop: &Stop,
        tell: &mut dyn FnMut(Checked),
    ) -> Result<(), String> {
        let place = *self.present().first().ok_or("no agent is left")?;
        let who = format!("agent {}", self.members[place].name);
        let lost = |crew: &mut Self, why: &str| {
            crew.lose(place, why);
            Err(format!("{who} was lost: {why}"))
        };
        tell(Checked::By { who: who.clone() });
        self.tell(&[place], &ToAgent::Check { order: Box::new(order.clone()) });
        let stream = self.members[place].stream.try_clone().map_err(|error| format!("{who}: {error}"))?;
        let (sender, news) = mpsc::channel();
        thread::spawn(move || hear(place, stream, &sender));
        let (mut heard, mut is_stopping) = (Instant::now(), false);
        loop {
            if stop.is_set() && !std::mem::replace(&mut is_stopping, true) {
                self.tell(&[place], &ToAgent::Stop);
            }
            match news.recv_timeout(LOOK) {
                Ok((_, Ok(FromAgent::Stage { checked }))) => {
                    heard = Instant::now();
                    tell(checked);
                }
                Ok((_, Ok(FromAgent::StagesDone { why }))) => {
                    return why.map_or(Ok(()), |why| Err(format!("{who}: {why}")));
                }
                Ok((_, Ok(other))) => {
                    return lost(self, &format!("it said {other:?} in the middle of a check"));
                }
                Ok((_, Err(error))) => return lost(self, &error.to_string()),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() < STAGE_MAX => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    // Ends the thread that listens, and the stage.
                    let _ = self.members[place].stream.shutdown(std::net::Shutdown::Both);
                    return lost(self, "it did not say in time how a stage ended");
                }
            }
        }
    }

    /// Asks how the agents' machines have been. Of one that is lost it stays unknown.
    pub fn ask_machines(&mut self, machines: &mut [Machine]) {
        for place in self.present() {
            let (member, machine) = (&self.members[place], &mut machines[place]);
            if let Some((load_average, steal_share)) = ask_machine(&member.stream) {
                (machine.load_average_after, machine.steal_share) = (load_average, steal_share);
            }
        }
    }
}

fn ask_machine(mut stream: &TcpStream) -> Option<(Option<f64>, Option<f64>)> {
    stream.set_read_timeout(Some(GREETING_MAX)).ok()?;
    send(&mut stream, &ToAgent::Machine).ok()?;
    match receive(&mut stream).ok()? {
        FromAgent::Machine { load_average, steal_share } => Some((load_average, steal_share)),
        _ => None,
    }
}
