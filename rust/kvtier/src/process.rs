//! Which process an object belongs to, so that one that came through `fork()` says so instead of hanging.
//!
//! A forked child has none of its parent's threads, and locks may be held for ever by threads that don't exist there.
//! So every public object remembers the process it was made in and is asked before any lock is taken. The answer costs
//! one atomic load: the embedding (Python's `os.register_at_fork`) reports forks through [`note_fork`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Tells the crate that this process is a fresh fork: all objects made before belong to its parent.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between the program's first process and this one, as far as they were reported.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// The process that an object was made in.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    forks: u64,
    pid: u32,
}

impl Home {
    /// The current process.
    pub fn here() -> Self {
        Self { forks: forks(), pid: std::process::id() }
    }

    /// Whether no fork was reported since the object was made. One atomic load.
    pub fn is_here(self) -> bool {
        forks() == self.forks
    }

    /// Whether this is the object's process; also sees forks that nobody reported, for the price of a system call.
    pub fn is_surely_here(self) -> bool {
        self.is_here() && std::process::id() == self.pid
    }
}

/// The error of an object that is used in a process it was not made in.
pub fn forked(what: &str, home: Home) -> Error {
    Error::new(
        ErrorKind::Forked,
        format!("this {what} belongs to process {}, of which this one is a fork; open a new one here", home.pid),
    )
}

/// Fails with [`ErrorKind::Forked`] unless no fork was reported since `what` was made.
pub fn check(what: &str, home: Home) -> Result<()> {
    if home.is_here() { Ok(()) } else { Err(forked(what, home)) }
}
