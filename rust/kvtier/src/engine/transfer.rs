//! Blocks to and from memory beside the tier's rows, for callers that wait.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Instant;

use super::job::{Apart, Job};
use super::{ASK_EVERY, DROP_GRACE, Engine, JobKind, JobResult, Shared};
use crate::buffer::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::BlockKey;

impl Engine {
    /// Stores or loads blocks and waits for the result: block `i` is `keys[i]`, in the row that `rows[i]` names by its
    /// region and number. Rows are as long as the tier's, or as its payloads. Such a job goes the way of all others, but
    /// for its rows and its result, which is returned.
    ///
    /// `gave_up` is asked every now and then on this thread; once it says true, what is not done yet is ended, and the
    /// result says so.
    ///
    /// # Errors
    /// As [`Engine::submit`]. `Timeout` when the caller has given up and the storage still holds a row: then that
    /// operation may touch it until it ends, and the row's region keeps the memory alive.
    pub fn transfer(
        &self,
        kind: JobKind,
        keys: Vec<BlockKey>,
        rows: &[(Arc<Region>, usize)],
        mut gave_up: impl FnMut() -> bool,
    ) -> Result<JobResult> {
        let shared = &self.shared;
        if keys.len() != rows.len() {
            let message = format!("{} keys but {} rows: each block has one of both", keys.len(), rows.len());
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        for (region, _) in rows {
            region.check_home()?;
            shared.check_access(kind, region.is_writable())?;
        }
        if kind == JobKind::Load
            && let Some((a, b)) = Region::overlapping(rows)
        {
            let message = format!("blocks {a} and {b} share memory, where only one can be loaded");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let holders: Vec<_> = rows.iter().map(|(region, _)| (region, Arc::strong_count(region))).collect();
        let cut = |(region, row): &(Arc<Region>, usize)| Ok((region.cut_to(shared.info.payload_bytes)?, *row));
        let rows = rows.iter().map(cut).collect::<Result<_>>()?;
        let (reply, result) = sync_channel(1);
        let job = self.submit_job(kind, None, keys, Vec::new(), Some(Apart { rows, reply }))?;
        self.begin_held();
        let mut answer = result.recv_timeout(ASK_EVERY);
        while matches!(answer, Err(RecvTimeoutError::Timeout)) && !gave_up() {
            answer = result.recv_timeout(ASK_EVERY);
        }
        if answer.is_err() {
            shared.cancel(&job);
            answer = result.recv_timeout(DROP_GRACE);
        }
        drop(job);
        let answer = answer.map_err(|_| {
            let reason = "the storage still holds a row of a transfer that its caller gave up";
            Error::new(ErrorKind::Timeout, reason)
        })?;
        // An operation lets go of its row a moment after its outcome; the caller shall have the memory for itself.
        let until = Instant::now() + DROP_GRACE;
        while holders.iter().any(|(region, n)| Arc::strong_count(region) > *n) && Instant::now() < until {
            thread::yield_now();
        }
        Ok(answer)
    }
}

impl Shared {
    /// Ends what is not done yet of a job that nobody waits for any more.
    fn cancel(&self, job: &Arc<Job>) {
        self.state.lock().queues.remove(job);
        self.end_early(job, 0..job.keys.len(), ErrorKind::Timeout, "the caller stopped waiting");
        self.store.0.leases_ended();
    }
}
