//! Locks without poison, made of the standard library's.
//!
//! Not `parking_lot`: its threads queue in one table of the process, and a thread that holds a part of that table while
//! another one forks leaves it locked for ever in the child, where a newly opened tier has to work.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError};
use std::time::Instant;

/// A mutual exclusion lock. A panic while it is held does not poison it: panics are contained where they happen, and
/// what the lock protects is consistent whenever foreign code, which alone could panic, runs.
#[derive(Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(Some(guard))),
            Err(sync::TryLockError::Poisoned(poisoned)) => Some(MutexGuard(Some(poisoned.into_inner()))),
            Err(sync::TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// Holds a [`Mutex`]. `None` only while a [`Condvar`] waits with it.
pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(guard) => guard,
            None => unreachable!("a guard is used while its condition variable waits"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("a guard is used while its condition variable waits"),
        }
    }
}

/// Waits for a change of what a [`Mutex`] protects.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 = guard.0.take().map(|held| self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until `until` at most; returns whether that time has come.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        guard.0 = guard.0.take().map(|held| self.0.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0);
        Instant::now() >= until
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_panic_does_not_poison() {
        let lock = Arc::new(Mutex::new(1));
        let inner = Arc::clone(&lock);
        let panicked = std::thread::spawn(move || {
            let _held = inner.lock();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.join().is_err());
        assert_eq!(*lock.lock(), 1);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn waits_end_by_notice_or_by_time() {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let (lock, changed) = &*shared;
        let mut held = lock.lock();
        assert!(changed.wait_until(&mut held, Instant::now() + Duration::from_millis(5)));
        assert!(lock.try_lock().is_none());
        let other = Arc::clone(&shared);
        let notifier = std::thread::spawn(move || {
            *other.0.lock() = true;
            other.1.notify_all();
        });
        while !*held {
            changed.wait(&mut held);
        }
        drop(held);
        assert!(notifier.join().is_ok());
    }
}
