//! Whether an operation may still touch its row.

use std::sync::atomic::{AtomicU8, Ordering};

const OPEN: u8 = 0;
const BUSY: u8 = 1;
const BUSY_EXPIRED: u8 = 2;
const EXPIRED: u8 = 3;
const FINAL: u8 = 4;

/// The state of one operation: who may touch its row, and whether its outcome is decided.
///
/// ```text
///            enter              expire
///   OPEN ───────────▶ BUSY ───────────▶ BUSY_EXPIRED
///    │ ◀─────────────  │                     │ leave
///    │      leave      │                     ▼
///    │ expire, finish  │ finish           EXPIRED
///    ▼                 ▼                     │ finish
///  FINAL ◀───────────────────────────────────┘
/// ```
///
/// `enter` and `leave` are called by the one thread that works on the operation, `expire` by the clock, `finish` by
/// whoever delivers the outcome. Whoever takes the gate to FINAL (`finish` returning true, or `expire` returning
/// [`Expiry::Final`]) reports the outcome, and nobody else does, so there is exactly one.
#[derive(Debug, Default)]
pub struct Gate(AtomicU8);

/// What [`Gate::expire`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The operation is over now: the caller reports it, and its row is the engine's again.
    Final,
    /// Somebody is touching the row; the operation is over once they have left, and [`Gate::finish`] reports it.
    Deferred,
    /// The outcome was decided before.
    Late,
}

impl Gate {
    /// True until the operation has expired or its outcome is decided.
    pub fn is_open(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), OPEN | BUSY)
    }

    /// Begins touching the row; false when the operation is over.
    pub(super) fn enter(&self) -> bool {
        self.0.compare_exchange(OPEN, BUSY, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends touching the row; true while the operation is still open.
    pub(super) fn leave(&self) -> bool {
        if self.0.compare_exchange(BUSY, OPEN, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        // Only BUSY_EXPIRED is left to change; FINAL (the outcome was delivered from inside) stays.
        let _ = self.0.compare_exchange(BUSY_EXPIRED, EXPIRED, Ordering::AcqRel, Ordering::Acquire);
        false
    }

    /// The operation's time is over, or it is cancelled.
    pub fn expire(&self) -> Expiry {
        let mut state = self.0.load(Ordering::Acquire);
        loop {
            let (next, found) = match state {
                OPEN => (FINAL, Expiry::Final),
                BUSY => (BUSY_EXPIRED, Expiry::Deferred),
                BUSY_EXPIRED | EXPIRED => return Expiry::Deferred,
                _ => return Expiry::Late,
            };
            match self.0.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return found,
                Err(now) => state = now,
            }
        }
    }

    /// Decides the outcome; true for the one caller that has to report it.
    pub fn finish(&self) -> bool {
        self.0.swap(FINAL, Ordering::AcqRel) != FINAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_operation_expires_at_once_and_reports_once() {
        let gate = Gate::default();
        assert_eq!(gate.expire(), Expiry::Final);
        assert!(!gate.enter());
        assert!(!gate.finish());
        assert_eq!(gate.expire(), Expiry::Late);
    }

    #[test]
    fn expiry_waits_for_whoever_touches_the_row() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert_eq!(gate.expire(), Expiry::Deferred);
        assert!(!gate.is_open());
        assert_eq!(gate.expire(), Expiry::Deferred, "a shutdown after the deadline has to wait as well");
        assert!(!gate.leave(), "the worker learns that it has to stop");
        assert_eq!(gate.expire(), Expiry::Deferred, "the worker is about to report");
        assert!(!gate.enter());
        assert!(gate.finish(), "the deferred outcome is reported by finish");
        assert!(!gate.finish());
    }

    #[test]
    fn finishing_from_inside_is_final() {
        let gate = Gate::default();
        assert!(gate.enter());
        assert!(gate.finish());
        assert!(!gate.leave());
        assert_eq!(gate.expire(), Expiry::Late);
    }

    #[test]
    fn one_reporter_under_contention() {
        for _ in 0..2_000 {
            let gate = Gate::default();
            let reports = std::thread::scope(|s| {
                let worker = s.spawn(|| {
                    if gate.enter() {
                        gate.leave();
                    }
                    u32::from(gate.finish())
                });
                let clock = s.spawn(|| u32::from(gate.expire() == Expiry::Final));
                worker.join().unwrap_or(9) + clock.join().unwrap_or(9)
            });
            assert_eq!(reports, 1);
        }
    }
}
