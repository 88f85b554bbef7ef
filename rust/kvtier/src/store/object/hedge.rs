//! When a load that has waited for its answer unusually long asks a second time.

use std::time::Duration;

use crate::sync::Mutex;

/// How many of the latest answers count.
const WINDOW: usize = 256;

/// Fewer say nothing about what is unusual.
const ENOUGH: usize = 32;

/// Knows how long answers usually take.
#[derive(Debug)]
pub(super) struct Hedge {
    quantile: f64,
    seen: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    latest: Vec<Duration>,
    next: usize,
    /// Computed anew with every [`ENOUGH`] answers.
    unusual: Option<Duration>,
}

impl Hedge {
    pub(super) fn new(quantile: f64) -> Self {
        Self { quantile, seen: Mutex::default() }
    }

    /// How long to wait before asking again; `None` while too little is known.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.seen.lock().unusual
    }

    /// An answer took that long.
    pub(super) fn observe(&self, wait: Duration) {
        let mut seen = self.seen.lock();
        let at = seen.next;
        if at < seen.latest.len() {
            seen.latest[at] = wait;
        } else {
            seen.latest.push(wait);
        }
        seen.next = (at + 1) % WINDOW;
        if seen.next.is_multiple_of(ENOUGH) {
            let mut sorted = seen.latest.clone();
            sorted.sort_unstable();
            #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss)] // a few hundred, and a share of it
            let rank = (self.quantile * sorted.len() as f64) as usize;
            seen.unusual = sorted.get(rank.min(sorted.len() - 1)).copied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_the_quantile_of_the_latest_answers() {
        let hedge = Hedge::new(0.9);
        for ms in 0..31 {
            hedge.observe(Duration::from_millis(ms));
        }
        assert_eq!(hedge.patience(), None);
        for ms in 31..100 {
            hedge.observe(Duration::from_millis(ms));
        }
        assert_eq!(hedge.patience(), Some(Duration::from_millis(86)), "of the first 96");
        for _ in 0..WINDOW {
            hedge.observe(Duration::from_millis(1));
        }
        assert_eq!(hedge.patience(), Some(Duration::from_millis(1)));
    }
}
