//! What each request was told, for as long as it is open.

use std::hash::BuildHasher;
use std::time::Instant;

use foldhash::fast::RandomState;
use hashbrown::hash_map::Entry;

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

/// A key within one request's verdicts, in 128 bits: half the table to grow and copy on the scheduler's thread. The seeds
/// are random, so equal tags of different keys are as likely as guessing a UUID.
type Tag = u128;

/// Where a request's verdict on a key is, or will be.
pub(super) type Held<'a> = Entry<'a, Tag, Verdict, RandomState>;

/// The verdicts of all open requests.
///
/// They are not changed when a block is stored or fails, which would cost a pass over all requests: each carries the
/// moment it was given, and is compared with later stores and [`Failures`] when it is asked for again.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    seeds: (RandomState, RandomState),
    requests: Map<RequestId, Request>,
}

#[derive(Debug)]
struct Request {
    /// No verdict of the request is older.
    opened: Moment,
    given: Map<Tag, Verdict>,
}

impl Verdicts {
    /// The verdict of `request` on `key`; opens the request.
    pub(super) fn held(&mut self, request: RequestId, key: &BlockKey, now: Moment) -> Held<'_> {
        let tag = Tag::from(self.seeds.0.hash_one(key)) << 64 | Tag::from(self.seeds.1.hash_one(key));
        let open = || Request { opened: now, given: Map::default() };
        self.requests.entry(request).or_insert_with(open).given.entry(tag)
    }

    pub(super) fn release(&mut self, request: RequestId) {
        self.requests.remove(&request);
    }

    pub(super) fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// When the oldest open request was opened.
    fn oldest(&self) -> Option<Moment> {
        self.requests.values().map(|r| r.opened).min()
    }
}

/// From this many failures on, those that no open request can have seen are swept out.
const SWEEP_FAILURES_FROM: usize = 1024;

/// When loads of a key last failed, as far as an open request may hold a HIT from before.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: Map<BlockKey, Moment>,
    sweep_at: usize,
}

impl Failures {
    /// Whether a load of `key` failed after `since`.
    pub(super) fn came_after(&self, since: Moment, key: &BlockKey) -> bool {
        !self.last.is_empty() && self.last.get(key).is_some_and(|failed| *failed > since)
    }

    /// A load of `key` failed.
    pub(super) fn add(&mut self, key: &BlockKey, now: Moment, verdicts: &Verdicts) {
        if self.last.len() >= self.sweep_at.max(SWEEP_FAILURES_FROM) {
            self.sweep(verdicts);
            self.sweep_at = self.last.len() * 2;
        }
        self.last.insert(*key, now);
    }

    /// A store of `key` was completed, so earlier failures say nothing any more.
    pub(super) fn forgive(&mut self, key: &BlockKey) {
        if !self.last.is_empty() {
            self.last.remove(key);
        }
    }

    /// Drops what no open request can have seen.
    pub(super) fn sweep(&mut self, verdicts: &Verdicts) {
        match verdicts.oldest() {
            Some(oldest) => self.last.retain(|_, failed| *failed > oldest),
            None => *self = Self::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}
