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
/// moment it was given, and is compared with later stores and failures when it is asked for again.
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

/// From this many keys on, those that matter to no open request are swept out.
const SWEEP_FROM: usize = 1024;

/// When something last happened to a key (a load of it failed, a store of it was completed), as far as an open request may
/// hold a verdict from before.
#[derive(Debug, Default)]
pub(super) struct KeyMoments {
    last: Map<BlockKey, Moment>,
    sweep_at: usize,
}

impl KeyMoments {
    /// Whether it happened to `key` after `since`.
    pub(super) fn came_after(&self, since: Moment, key: &BlockKey) -> bool {
        self.last(key).is_some_and(|last| last > since)
    }

    /// When it last happened to `key`.
    pub(super) fn last(&self, key: &BlockKey) -> Option<Moment> {
        if self.last.is_empty() { None } else { self.last.get(key).copied() }
    }

    /// It happens to `key`.
    pub(super) fn add(&mut self, key: &BlockKey, now: Moment, verdicts: &Verdicts) {
        if self.last.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.sweep(verdicts);
            self.sweep_at = self.last.len() * 2;
        }
        self.last.insert(*key, now);
    }

    /// What happened to `key` before says nothing any more.
    pub(super) fn forgive(&mut self, key: &BlockKey) {
        if !self.last.is_empty() {
            self.last.remove(key);
        }
    }

    /// Drops what no open request can have seen.
    pub(super) fn sweep(&mut self, verdicts: &Verdicts) {
        match verdicts.oldest() {
            Some(oldest) => self.last.retain(|_, last| *last > oldest),
            None => *self = Self::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}
