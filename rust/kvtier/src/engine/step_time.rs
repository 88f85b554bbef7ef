//! The time at which the lookups of one step are made.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A step's lookups come within microseconds of each other, and to ask the system for the time takes as long as a lookup
/// may. So one answer does for a step, or for this many lookups in case the caller's steps don't end.
const LOOKUPS: u32 = 64;

/// See [`LOOKUPS`].
#[derive(Debug)]
pub(super) struct StepTime {
    began: Instant,
    nanos: AtomicU64,
    /// For how many more lookups that time is good.
    left: AtomicU32,
}

impl StepTime {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), nanos: AtomicU64::new(0), left: AtomicU32::new(0) }
    }

    /// The time, not exactly. Lookups ask one at a time.
    pub(super) fn now(&self) -> Instant {
        match self.left.load(Ordering::Relaxed) {
            0 => {
                let now = Instant::now();
                let nanos = u64::try_from((now - self.began).as_nanos()).unwrap_or(u64::MAX);
                self.nanos.store(nanos, Ordering::Relaxed);
                self.left.store(LOOKUPS - 1, Ordering::Relaxed);
                now
            }
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                self.began + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
            }
        }
    }

    /// The next lookup is another step's.
    pub(super) fn step_ends(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_within_a_step_and_not_for_long() {
        let time = StepTime::new();
        let first = time.now();
        let wait = || std::thread::sleep(Duration::from_millis(1));
        wait();
        assert_eq!(time.now(), first);
        time.step_ends();
        let second = time.now();
        assert!(second > first);
        wait();
        assert!((0..LOOKUPS).any(|_| time.now() > second), "a step that never ends");
    }
}
