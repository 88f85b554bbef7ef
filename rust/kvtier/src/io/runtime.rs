//! The one asynchronous runtime of the process, for everything that goes over a network.
//!
//! It starts when the first store needs it and ends in the background when the last one has let go. In a forked child,
//! which has none of its threads, the next store starts a new one.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use super::Task;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Home};
use crate::sync::{Mutex, MutexGuard};

/// What is shared in this process. Held for moments only, never while the runtime starts.
static SHARED: Mutex<Option<Shared>> = Mutex::new(None);

type Shared = (Home, Weak<Runtime>);

/// How long a fresh fork waits for a lock that a thread of its parent may have held at the moment of the fork.
const LOST_LOCK: Duration = Duration::from_millis(100);

/// Name lookups are the only work that blocks.
const BLOCKING_THREADS: usize = 4;

thread_local! {
    /// Whether this is a thread of a [`Runtime`].
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Threads that drive network IO.
pub struct Runtime {
    home: Home,
    /// `None` only while dropping.
    tokio: Option<tokio::runtime::Runtime>,
}

impl Runtime {
    /// The process's runtime, started if need be.
    ///
    /// # Errors
    /// `Unavailable` when the system has no thread or descriptor left.
    pub fn shared() -> Result<Arc<Self>> {
        let current = |shared: &Option<Shared>| match shared {
            Some((home, runtime)) if home.is_surely_here() => runtime.upgrade(),
            _ => None,
        };
        let Some(shared) = lock_shared() else {
            // Nobody is left to unlock it: each store of this process gets a runtime of its own.
            return Self::start();
        };
        if let Some(runtime) = current(&shared) {
            return Ok(runtime);
        }
        drop(shared);
        let started = Self::start()?;
        let Some(mut shared) = lock_shared() else { return Ok(started) };
        // Another thread may have been quicker.
        let runtime = current(&shared).unwrap_or(started);
        *shared = Some((runtime.home, Arc::downgrade(&runtime)));
        Ok(runtime)
    }

    fn start() -> Result<Arc<Self>> {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(default_threads())
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("kvtier-net")
            .on_thread_start(|| INSIDE.set(true))
            .enable_all()
            .build()
            .map_err(|e| {
                Error::new(ErrorKind::Unavailable, format!("the network threads can't be started: {e}")).with_source(e)
            })?;
        Ok(Arc::new(Self { home: Home::here(), tokio: Some(tokio) }))
    }

    /// Runs `future` to its end. When the runtime ends first, it is dropped.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(tokio) = &self.tokio {
            tokio.spawn(future);
        }
    }

    /// Runs `task`, which must not block, on one of the threads.
    pub fn run(&self, task: Task) {
        self.spawn(async move { task() });
    }

    /// Runs `future` and blocks the calling thread until it is done.
    ///
    /// # Errors
    /// `Forked` in a forked child, `Internal` on a thread of the runtime itself, which would wait for itself, and when
    /// the future panics.
    pub fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        if !self.home.is_surely_here() {
            return Err(process::forked("network runtime", self.home));
        }
        if INSIDE.get() {
            return Err(Error::new(ErrorKind::Internal, "a network thread must not wait for network IO"));
        }
        // Not the runtime's own way of waiting, which is refused on threads of any other runtime.
        let (answer, answered) = mpsc::sync_channel(1);
        self.spawn(async move {
            let _ = answer.send(future.await);
        });
        answered.recv().map_err(|_| Error::new(ErrorKind::Internal, "a network task ended without an answer"))
    }

    /// How many threads drive network IO.
    pub fn threads(&self) -> usize {
        default_threads()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(tokio) = self.tokio.take() {
            if self.home.is_here() {
                // The last user may be one of the threads.
                tokio.shutdown_background();
            } else {
                // A fork: its threads are the parent's, and so are its locks.
                std::mem::forget(tokio);
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("home", &self.home).finish_non_exhaustive()
    }
}

fn lock_shared() -> Option<MutexGuard<'static, Option<Shared>>> {
    let give_up = Instant::now() + LOST_LOCK;
    loop {
        match SHARED.try_lock() {
            None if Instant::now() < give_up => std::thread::sleep(Duration::from_micros(100)),
            locked => return locked,
        }
    }
}

/// One drives 1-2 GB/s, so a few are enough for any network.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_share_one_and_it_ends_with_the_last() -> Result<()> {
        let (a, b) = (Runtime::shared()?, Runtime::shared()?);
        assert!(Arc::ptr_eq(&a, &b));
        let (dropped, ended) = mpsc::channel::<()>();
        a.spawn(async move {
            let _kept = dropped;
            std::future::pending::<()>().await;
        });
        drop(a);
        assert!(matches!(ended.recv_timeout(Duration::from_millis(50)), Err(mpsc::RecvTimeoutError::Timeout)));
        drop(b);
        // Other tests may hold the shared runtime, so only a runtime of this test's own is sure to end.
        let own = Runtime::start()?;
        let (dropped, ended) = mpsc::channel::<()>();
        own.spawn(async move {
            let _kept = dropped;
            std::future::pending::<()>().await;
        });
        drop(own);
        assert_eq!(ended.recv_timeout(Duration::from_secs(5)), Err(mpsc::RecvTimeoutError::Disconnected));
        Ok(())
    }

    #[test]
    fn it_can_be_waited_for_from_anywhere_but_inside() -> Result<()> {
        let runtime = Runtime::shared()?;
        assert_eq!(runtime.wait(async { 7 })?, 7);
        let again = Arc::clone(&runtime);
        let inside = runtime.wait(async move { again.wait(async { 7 }).map_err(|e| e.kind()) })?;
        assert_eq!(inside, Err(ErrorKind::Internal));
        let embedder = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(embedder.block_on(async { runtime.wait(async { 8 }) })?, 8);
        let panicked: Result<()> = runtime.wait(async { panic!("injected") });
        assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Internal);
        Ok(())
    }

    #[test]
    fn the_last_user_may_be_one_of_its_threads() -> Result<()> {
        let own = Runtime::start()?;
        let (ran, done) = mpsc::channel();
        let (last, taken) = mpsc::channel::<Arc<Runtime>>();
        own.run(Box::new(move || {
            drop(taken.recv());
            let _ = ran.send(());
        }));
        last.send(own).unwrap();
        assert!(done.recv_timeout(Duration::from_secs(5)).is_ok());
        Ok(())
    }
}
