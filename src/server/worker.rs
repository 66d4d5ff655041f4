//! A worker: takes jobs from the channel and runs each to completion.

use super::job::{DataPlane, Job, Runner, Shared};
use crossbeam_channel::Receiver;
use std::sync::Arc;

/// One thread of the pool.
pub(super) struct Worker<P> {
    pub(super) plane: Arc<P>,
    pub(super) jobs: Receiver<Job>,
    pub(super) shared: Arc<Shared>,
    pub(super) runner: Runner,
}

impl<P: DataPlane> Worker<P> {
    /// Works until the listener has hung up and the channel is empty.
    pub(super) fn run(mut self) {
        while let Ok(job) = self.jobs.recv() {
            self.runner.run_batch(&*self.plane, &job.batch);
            // The batch goes home before the job counts as closed, so that a closed job always means
            // an idle batch.
            drop(job);
            self.shared.job_closed();
            self.shared.wake_for(|| self.plane.next_deadline());
        }
    }
}
