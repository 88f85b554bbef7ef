//! Limits on bytes a second.

use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::sync::Mutex;

/// Spreads transfers so that their bytes stay below a rate on average. One transfer goes at full speed.
#[derive(Debug)]
pub(super) struct Pace(Option<Limit>);

#[derive(Debug)]
struct Limit {
    bytes_per_second: u64,
    /// When the transfers that were let through so far are paid for.
    paid: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        let limit = |bytes_per_second| Limit { bytes_per_second, paid: Mutex::new(Instant::now()) };
        Self(bytes_per_second.map(limit))
    }

    /// Waits for the turn of a transfer of `bytes` bytes.
    pub(super) async fn turn(&self, bytes: u64) {
        if let Some(limit) = &self.0 {
            sleep_until(limit.turn(bytes, Instant::now()).into()).await;
        }
    }
}

impl Limit {
    fn turn(&self, bytes: u64, now: Instant) -> Instant {
        let mut paid = self.paid.lock();
        let turn = (*paid).max(now);
        *paid = turn + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second);
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_wait_for_those_before() {
        let now = Instant::now();
        let limit = Limit { bytes_per_second: 1000, paid: Mutex::new(now) };
        assert_eq!(limit.turn(500, now), now);
        assert_eq!(limit.turn(250, now), now + Duration::from_millis(500));
        assert_eq!(limit.turn(1000, now), now + Duration::from_millis(750));
        let later = now + Duration::from_secs(10);
        assert_eq!(limit.turn(1000, later), later, "what was not used is not saved");
    }
}
