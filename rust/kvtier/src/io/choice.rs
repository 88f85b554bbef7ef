//! Which engine a store gets.

use std::sync::Arc;

use super::{IoEngine, ThreadEngine, UringEngine};
use crate::config::IoEngineChoice;
use crate::error::Result;

/// The engine for one store: what every store on a file system calls, so that the option means the same everywhere.
///
/// `threads` is how many threads run tasks and completions, and with the threads engine the transfers as well. With
/// `auto`, `ring_gains` decides: whether transfers of the store's layout were measured to be quicker through a ring
/// (`docs/tuning.md` has the figures). A ring that can't be had is no error: threads make the transfers then, and one
/// line in the log says why, as a warning if the ring was asked for by name.
///
/// # Errors
/// `Unavailable` when the system gives no more threads.
pub fn engine_for(choice: IoEngineChoice, ring_gains: bool, threads: usize) -> Result<Arc<dyn IoEngine>> {
    let tasks = ThreadEngine::start("kvtier-io", threads)?;
    let (wanted, asked_for) = match choice {
        IoEngineChoice::Auto => (ring_gains, false),
        IoEngineChoice::Threads => (false, false),
        IoEngineChoice::Uring => (true, true),
    };
    if !wanted {
        return Ok(tasks);
    }
    match UringEngine::start("kvtier-ring", Arc::clone(&tasks), UringEngine::rings(), UringEngine::DEPTH) {
        Ok(engine) => Ok(engine),
        Err(error) => {
            let level = if asked_for { log::Level::Warn } else { log::Level::Info };
            log::log!(level, "threads make the transfers instead of io_uring: {error}");
            Ok(tasks)
        }
    }
}
