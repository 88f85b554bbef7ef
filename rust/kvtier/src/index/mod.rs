//! What is known to be here: residency, the verdicts given to requests, and probes under way.
//!
//! Pure bookkeeping in memory: no IO, no threads, no clock of its own. The engine keeps it behind one lock that is never
//! held across IO, so a lookup costs a few hash-table steps.
//!
//! A question is answered by what is known best:
//! 1. the verdict that the request was given before;
//! 2. residency: HIT;
//! 3. complete knowledge (nobody else can add blocks, and the start-up scan is done): MISS;
//! 4. a probe of the storage: RETRY until it answers, MISS when it takes longer than the lookup timeout.

mod probes;
#[cfg(test)]
mod tests;
mod verdicts;

use std::time::{Duration, Instant};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use self::probes::{Asker, Finding, Probes};
pub use self::probes::{ProbeAnswer, ProbeBatch};
pub use self::verdicts::RequestId;
use self::verdicts::{Failures, Held, Verdict, Verdicts};
use crate::layout::BlockKey;
use crate::store::Location;

/// Hash tables of the crate: keys are cryptographic hashes already, so a fast hasher with a random seed is enough.
pub(crate) type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
/// See [`Map`].
pub(crate) type Set<K> = HashSet<K, foldhash::fast::RandomState>;

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lookup {
    /// The block is here; load it.
    Hit,
    /// The block is not here.
    Miss,
    /// Not known yet; ask again at the next step.
    Retry,
}

/// A point in the index's own order of events; later is greater.
type Moment = u64;

/// A block that is known to be here.
#[derive(Clone, Copy, Debug)]
struct Resident {
    location: Location,
    /// When a store of it was last completed here; 0 when it was found by a probe or a scan.
    stored: Moment,
}

/// What a failed load says about its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Nothing: the failure was the job's own, such as its deadline.
    Unchanged,
    /// The storage gave no clear answer; another time it may.
    Doubtful,
    /// It is not there, or of no use.
    Gone,
}

/// How an index behaves; fixed for its lifetime.
#[derive(Clone, Copy, Debug)]
pub struct IndexConfig {
    /// How long a request waits for a probe before it is told MISS.
    pub lookup_timeout: Duration,
}

/// What is known to be here. See the [module](self).
#[derive(Debug)]
pub struct Index {
    config: IndexConfig,
    resident: Map<BlockKey, Resident>,
    verdicts: Verdicts,
    failures: Failures,
    probes: Probes,
    complete: bool,
    /// What was removed since the running scan began: the scan may have listed it before.
    removed_while_scanning: Option<Set<BlockKey>>,
    now: Moment,
}

/// A lookup's answer, and what the engine has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the caller is told.
    pub lookup: Lookup,
    /// Whether this is the first time that this request is told so (every time, without a request): counted once.
    pub fresh: bool,
    /// Whether a probe was queued that somebody has to start.
    pub queued: bool,
}

impl Index {
    /// An index that knows nothing yet.
    pub fn new(config: IndexConfig) -> Self {
        Self {
            config,
            resident: Map::default(),
            verdicts: Verdicts::default(),
            failures: Failures::default(),
            probes: Probes::default(),
            complete: false,
            removed_while_scanning: None,
            now: 1,
        }
    }

    /// Answers whether `key` is here, for `request` or for nobody in particular.
    ///
    /// `degraded` turns everything that is not yet answered into MISS. `clock` is only asked when a probe is involved.
    pub fn lookup(
        &mut self,
        key: &BlockKey,
        request: Option<RequestId>,
        degraded: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Answer {
        let held = request.map(|r| self.verdicts.held(r, key, self.now));
        let resident = self.resident.get(key);
        let mut asker = if held.is_some() { Asker::First } else { Asker::Anyone };
        let told = |lookup| Answer { lookup, fresh: false, queued: false };
        match held_verdict(held.as_ref()) {
            Some(Verdict::Hit { since }) if !self.failures.came_after(since, key) => return told(Lookup::Hit),
            Some(Verdict::Hit { .. }) => return settle(held, Lookup::Miss, self.now),
            Some(Verdict::Miss { since }) if resident.is_none_or(|r| r.stored <= since) => return told(Lookup::Miss),
            Some(Verdict::Miss { .. }) => return settle(held, Lookup::Hit, self.now),
            Some(Verdict::Waiting { since }) => asker = Asker::Waiting(since),
            None => {}
        }
        if degraded {
            return settle(held, Lookup::Miss, self.now);
        }
        if resident.is_some() {
            return settle(held, Lookup::Hit, self.now);
        }
        if self.complete {
            return settle(held, Lookup::Miss, self.now);
        }
        let now = clock();
        match self.probes.ask(key, asker, now, self.config.lookup_timeout) {
            Finding::Absent => settle(held, Lookup::Miss, self.now),
            Finding::Pending { queued } => {
                if let (Some(held), Asker::First) = (held, asker) {
                    held.insert(Verdict::Waiting { since: now });
                }
                Answer { lookup: Lookup::Retry, fresh: !matches!(asker, Asker::Waiting(_)), queued }
            }
        }
    }

    /// Where `key` lies, if it is known to be here.
    pub fn location(&self, key: &BlockKey) -> Option<Location> {
        self.resident.get(key).map(|r| r.location)
    }

    /// How many blocks are known to be here.
    pub fn resident_blocks(&self) -> usize {
        self.resident.len()
    }

    /// How many requests hold verdicts.
    pub fn open_requests(&self) -> usize {
        self.verdicts.open_requests()
    }

    /// Forgets the verdicts of `request`.
    pub fn release(&mut self, request: RequestId) {
        self.verdicts.release(request);
        if self.verdicts.open_requests() == 0 {
            self.failures.sweep(&self.verdicts);
        }
    }

    /// A store was completed: the block is here, and every request that was told MISS is now told HIT.
    pub fn stored(&mut self, key: &BlockKey, location: Location) {
        self.now += 1;
        self.resident.insert(*key, Resident { location, stored: self.now });
        if let Some(removed) = &mut self.removed_while_scanning {
            removed.remove(key);
        }
        self.failures.forgive(key);
        self.probes.overrule(key);
    }

    /// A scan of the storage begins.
    pub fn scan_begins(&mut self) {
        self.removed_while_scanning = Some(Set::default());
    }

    /// The scan has ended, and others may have added blocks it has not met.
    pub fn scan_is_over(&mut self) {
        self.removed_while_scanning = None;
    }

    /// The scan has met every block, and nobody else can add any: what is not known to be here is not here.
    pub fn scan_is_complete(&mut self) {
        self.removed_while_scanning = None;
        self.complete = true;
    }

    /// A scan or a probe met a block. What is known already stays, and so does what was removed meanwhile.
    pub fn found(&mut self, key: &BlockKey, location: Location) {
        if self.removed_while_scanning.as_ref().is_some_and(|removed| removed.contains(key)) {
            return;
        }
        if let Entry::Vacant(entry) = self.resident.entry(*key) {
            entry.insert(Resident { location, stored: 0 });
        }
    }

    /// A load failed: every request that was told HIT is now told MISS. For later ones the block is not known to be here
    /// any more when it is gone, and when that is in doubt, unless nothing but a scan finds it again.
    ///
    /// Returns whether the block was known to be here and is not any more.
    pub fn load_failed(&mut self, key: &BlockKey, presence: Presence) -> bool {
        self.now += 1;
        if self.verdicts.open_requests() > 0 {
            self.failures.add(key, self.now, &self.verdicts);
        }
        let is_probed = !self.complete && self.removed_while_scanning.is_none();
        match presence {
            Presence::Gone => self.removed(key),
            Presence::Doubtful if is_probed => self.removed(key),
            Presence::Doubtful | Presence::Unchanged => false,
        }
    }

    /// The block is not here any more. Returns whether it was known to be.
    pub fn removed(&mut self, key: &BlockKey) -> bool {
        self.now += 1;
        self.probes.overrule(key);
        if let Some(removed) = &mut self.removed_while_scanning {
            removed.insert(*key);
        }
        self.resident.remove(key).is_some()
    }

    /// Whether unknown blocks are answered without a probe.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Forgets everything: residency, verdicts and probes.
    pub fn clear(&mut self) {
        self.now += 1;
        self.resident = Map::default();
        self.verdicts = Verdicts::default();
        self.failures = Failures::default();
        self.probes.clear();
        self.complete = false;
        self.removed_while_scanning = None;
    }

    /// Takes up to `most` keys whose probes have not begun.
    pub fn begin_probes(&mut self, most: usize) -> Option<ProbeBatch> {
        self.probes.begin(most)
    }

    /// How many keys wait to be probed.
    pub fn waiting_probes(&self) -> usize {
        self.probes.waiting()
    }

    /// A probe answered. A store, a removal or a [`Index::clear`] that came after it began wins over its answer.
    pub fn probed(&mut self, key: &BlockKey, ticket: u64, answer: ProbeAnswer, at: Instant) {
        if self.probes.finish(key, ticket, answer, at)
            && let ProbeAnswer::Present(location) = answer
        {
            self.found(key, location);
        }
    }
}

/// What the request was told before.
fn held_verdict(held: Option<&Held<'_>>) -> Option<Verdict> {
    match held {
        Some(Entry::Occupied(held)) => Some(*held.get()),
        _ => None,
    }
}

/// Gives an answer that stays: records it for the request, if one asks.
fn settle(held: Option<Held<'_>>, lookup: Lookup, since: Moment) -> Answer {
    if let Some(held) = held {
        held.insert(if lookup == Lookup::Hit { Verdict::Hit { since } } else { Verdict::Miss { since } });
    }
    Answer { lookup, fresh: true, queued: false }
}
