//! What each request was told, for as long as it is open.

use std::time::Instant;

use hashbrown::hash_map::Entry;

use super::tags::{Tag, TagMap, TagState};
use super::{Map, Moment};

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

/// Where a request's verdict on a key is, or will be.
pub(super) type Held<'a> = Entry<'a, Tag, Verdict, TagState>;

/// Emptied tables that are kept for the next requests, so that these neither grow theirs nor touch fresh memory on the
/// scheduler's thread; and how large a table may be to be kept.
const SPARES: usize = 16;
const SPARE_VERDICTS: usize = 4096;

/// The verdicts of all open requests.
///
/// They are not changed when a block is stored or fails, which would cost a pass over all requests: each carries the
/// moment it was given, and is compared with later stores and failures when it is asked for again.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    requests: Map<RequestId, Request>,
    spares: Vec<TagMap<Verdict>>,
}

#[derive(Debug)]
struct Request {
    /// No verdict of the request is older.
    opened: Moment,
    given: TagMap<Verdict>,
}

impl Verdicts {
    /// The verdict of `request` on the key of `tag`; opens the request.
    pub(super) fn held(&mut self, request: RequestId, tag: Tag, now: Moment) -> Held<'_> {
        let Self { requests, spares } = self;
        let open = || Request { opened: now, given: spares.pop().unwrap_or_default() };
        requests.entry(request).or_insert_with(open).given.entry(tag)
    }

    pub(super) fn release(&mut self, request: RequestId) {
        if let Some(Request { mut given, .. }) = self.requests.remove(&request)
            && self.spares.len() < SPARES
            && given.capacity() <= SPARE_VERDICTS
        {
            given.clear();
            self.spares.push(given);
        }
    }

    pub(super) fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// For how many verdicts memory is kept beside that of open requests.
    #[cfg(test)]
    pub(super) fn spare_verdicts(&self) -> usize {
        self.spares.iter().map(TagMap::capacity).sum()
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
    last: TagMap<Moment>,
    sweep_at: usize,
}

impl KeyMoments {
    /// Whether it happened to the key of `tag` after `since`.
    pub(super) fn came_after(&self, since: Moment, tag: Tag) -> bool {
        self.last(tag).is_some_and(|last| last > since)
    }

    /// When it last happened to that key.
    pub(super) fn last(&self, tag: Tag) -> Option<Moment> {
        if self.last.is_empty() { None } else { self.last.get(&tag).copied() }
    }

    /// It happens to that key.
    pub(super) fn add(&mut self, tag: Tag, now: Moment, verdicts: &Verdicts) {
        if self.last.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.sweep(verdicts);
            self.sweep_at = self.last.len() * 2;
        }
        self.last.insert(tag, now);
    }

    /// What happened to that key before says nothing any more.
    pub(super) fn forgive(&mut self, tag: Tag) {
        if !self.last.is_empty() {
            self.last.remove(&tag);
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
