//! Warnings that may become true for block after block: said now and then, with how often it was meanwhile.

use std::fmt;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// From one warning to the next of its kind: a disk full of bad blocks must not fill a log, or the time of its readers.
const PAUSE: Duration = Duration::from_secs(10);

/// One kind of warning of one store or engine.
#[derive(Debug, Default)]
pub(crate) struct Recurring(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    unsaid: u64,
}

impl Recurring {
    /// Logs `message` of the module `target`, unless one of this kind was logged just now; then it is counted, and the next
    /// one says so.
    pub(crate) fn warn(&self, target: &str, message: fmt::Arguments<'_>) {
        if !log::log_enabled!(target: target, log::Level::Warn) {
            return;
        }
        match self.due(Instant::now()) {
            None => {}
            Some(0) => log::warn!(target: target, "{message}"),
            Some(unsaid) => {
                log::warn!(target: target, "{message} (and {unsaid} times more since the last such warning)");
            }
        }
    }

    /// Whether it is time to say it, and how often it was not said since the last time.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock();
        if said.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            said.unsaid += 1;
            return None;
        }
        said.last = Some(now);
        Some(std::mem::take(&mut said.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_later_ones_are_counted() {
        let warning = Recurring::default();
        let began = Instant::now();
        assert_eq!(warning.due(began), Some(0));
        for ms in 0..5 {
            assert_eq!(warning.due(began + Duration::from_millis(ms)), None);
        }
        assert_eq!(warning.due(began + PAUSE), Some(5));
        assert_eq!(warning.due(began + PAUSE * 2), Some(0));
    }
}
