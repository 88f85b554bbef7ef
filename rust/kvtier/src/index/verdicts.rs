//! What each request was told, for as long as it is open.

use std::time::Instant;

use super::{Map, Moment};
use crate::layout::BlockKey;

/// A request, as numbered by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// What a request was told about a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// HIT, at that moment.
    Hit { since: Moment },
    /// MISS, at that moment.
    Miss { since: Moment },
    /// RETRY; a probe was asked for then.
    Waiting { since: Instant },
}

/// From this many failures on, those that no open request can have seen are swept out.
const SWEEP_FAILURES_FROM: usize = 1024;

/// The verdicts of all open requests, and the failed loads that revise them.
///
/// Verdicts are not changed when a block is stored or fails, which would cost a pass over all requests: each carries
/// the moment it was given, and is compared with later stores and failures when it is asked for again.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    requests: Map<RequestId, Request>,
    /// When a load of the key last failed. Only failures that an open request may hold a HIT from are kept.
    failures: Map<BlockKey, Moment>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Request {
    /// No verdict of the request is older.
    opened: Moment,
    given: Map<BlockKey, Verdict>,
}

impl Verdicts {
    pub(super) fn get(&self, request: RequestId, key: &BlockKey) -> Option<Verdict> {
        self.requests.get(&request)?.given.get(key).copied()
    }

    pub(super) fn set(&mut self, request: RequestId, key: &BlockKey, verdict: Verdict) {
        let opened = match verdict {
            Verdict::Hit { since } | Verdict::Miss { since } => since,
            Verdict::Waiting { .. } => 0,
        };
        self.requests
            .entry(request)
            .or_insert_with(|| Request { opened, given: Map::default() })
            .given
            .insert(*key, verdict);
    }

    pub(super) fn release(&mut self, request: RequestId) {
        self.requests.remove(&request);
        if self.requests.is_empty() {
            self.failures.clear();
            self.sweep_at = 0;
        }
    }

    pub(super) fn open_requests(&self) -> usize {
        self.requests.len()
    }

    #[cfg(test)]
    pub(super) fn failures(&self) -> usize {
        self.failures.len()
    }

    /// Whether a load of `key` failed after `since`.
    pub(super) fn failed_after(&self, key: &BlockKey, since: Moment) -> bool {
        !self.failures.is_empty() && self.failures.get(key).is_some_and(|failed| *failed > since)
    }

    /// A load of `key` failed.
    pub(super) fn fail(&mut self, key: &BlockKey, now: Moment) {
        if self.requests.is_empty() {
            return;
        }
        if self.failures.len() >= self.sweep_at.max(SWEEP_FAILURES_FROM) {
            let oldest = self.requests.values().map(|r| r.opened).min().unwrap_or(now);
            self.failures.retain(|_, failed| *failed > oldest);
            self.sweep_at = self.failures.len() * 2;
        }
        self.failures.insert(*key, now);
    }

    /// A store of `key` was completed, so earlier failures say nothing any more.
    pub(super) fn forgive(&mut self, key: &BlockKey) {
        if !self.failures.is_empty() {
            self.failures.remove(key);
        }
    }
}
