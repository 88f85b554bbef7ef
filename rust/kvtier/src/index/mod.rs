//! What is known to be here: residency, the verdicts given to requests, and probes under way.
//!
//! Pure bookkeeping in memory: no IO, no threads, no clock of its own. The engine keeps it behind one lock that is never
//! held across IO, so a lookup costs a few hash-table steps. Its tables know keys by tags (`tags.rs`).
//!
//! A question is answered by what is known best:
//! 1. the verdict that the request was given before;
//! 2. residency: HIT;
//!    A store that knows all of its blocks at any time ([`Residency`]) is asked instead of the index's own table.
//! 3. complete knowledge (nobody else can add blocks, and the start-up scan is done): MISS;
//! 4. a probe of the storage: RETRY until it answers, MISS when it takes longer than the lookup timeout.

mod probes;
mod tags;
#[cfg(test)]
mod tests;
mod verdicts;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use self::probes::{Asker, Finding, Probes};
pub use self::probes::{PROBE_BATCH, ProbeAnswer, ProbeBatch};
use self::tags::{Tag, TagMap, TagSet, Tags};
pub use self::verdicts::RequestId;
use self::verdicts::{Held, KeyMoments, Verdict, Verdicts};
use crate::layout::BlockKey;
use crate::store::{Known, Location, Residency};

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
    tags: Tags,
    resident: TagMap<Resident>,
    /// The store's own index, in place of `resident`.
    own: Option<StoresOwn>,
    /// When stores of such blocks were last completed here.
    stores: KeyMoments,
    verdicts: Verdicts,
    /// When loads last failed.
    failures: KeyMoments,
    probes: Probes,
    complete: bool,
    scan: Option<Scan>,
    last_scan: u64,
    now: Moment,
}

#[derive(Clone)]
struct StoresOwn(Arc<dyn Residency>);

impl fmt::Debug for StoresOwn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Residency")
    }
}

/// What is known of a block when somebody asks.
#[derive(Clone, Copy, Debug)]
enum Presently {
    /// It is here since that moment; 0 when it was found.
    Here(Moment),
    Absent,
    Unknown,
}

/// A listing of the storage that is under way.
#[derive(Debug)]
struct Scan {
    number: u64,
    /// What was removed since it began: it may have been listed before.
    removed: TagSet,
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
            tags: Tags::default(),
            resident: TagMap::default(),
            own: None,
            stores: KeyMoments::default(),
            verdicts: Verdicts::default(),
            failures: KeyMoments::default(),
            probes: Probes::default(),
            complete: false,
            scan: None,
            last_scan: 0,
            now: 1,
        }
    }

    /// An index that asks the store's own.
    pub fn over(config: IndexConfig, own: Arc<dyn Residency>) -> Self {
        Self { own: Some(StoresOwn(own)), ..Self::new(config) }
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
        let tag = self.tags.of(key);
        let presently = self.presently(key, tag);
        let held = request.map(|r| self.verdicts.held(r, tag, self.now));
        let mut asker = if held.is_some() { Asker::First } else { Asker::Anyone };
        let told = |lookup| Answer { lookup, fresh: false, queued: false };
        match held_verdict(held.as_ref()) {
            Some(Verdict::Hit { since }) if !self.failures.came_after(since, tag) => return told(Lookup::Hit),
            Some(Verdict::Hit { .. }) => return settle(held, Lookup::Miss, self.now),
            Some(Verdict::Miss { since }) if !matches!(presently, Presently::Here(stored) if stored > since) => {
                return told(Lookup::Miss);
            }
            Some(Verdict::Miss { .. }) => return settle(held, Lookup::Hit, self.now),
            Some(Verdict::Waiting { since }) => asker = Asker::Waiting(since),
            None => {}
        }
        if degraded {
            return settle(held, Lookup::Miss, self.now);
        }
        match presently {
            Presently::Here(_) => return settle(held, Lookup::Hit, self.now),
            Presently::Absent => return settle(held, Lookup::Miss, self.now),
            Presently::Unknown => {}
        }
        let now = clock();
        let timeout = self.config.lookup_timeout;
        self.probes.sweep(now, timeout, &self.tags);
        match self.probes.ask(key, tag, asker, now, timeout) {
            Finding::Absent => settle(held, Lookup::Miss, self.now),
            Finding::Pending { queued } => {
                if let (Some(held), Asker::First) = (held, asker) {
                    held.insert(Verdict::Waiting { since: now });
                }
                Answer { lookup: Lookup::Retry, fresh: !matches!(asker, Asker::Waiting(_)), queued }
            }
        }
    }

    fn presently(&self, key: &BlockKey, tag: Tag) -> Presently {
        match &self.own {
            Some(own) => match own.0.find(key) {
                Known::Here(_) => Presently::Here(self.stores.last(tag).unwrap_or(0)),
                Known::Absent => Presently::Absent,
                Known::Unknown => Presently::Unknown,
            },
            None => match self.resident.get(&tag) {
                Some(resident) => Presently::Here(resident.stored),
                None if self.complete => Presently::Absent,
                None => Presently::Unknown,
            },
        }
    }

    /// Where `key` lies, if it is known to be here.
    pub fn location(&self, key: &BlockKey) -> Option<Location> {
        match &self.own {
            Some(own) => match own.0.find(key) {
                Known::Here(location) => Some(location),
                Known::Absent | Known::Unknown => None,
            },
            None => self.resident.get(&self.tags.of(key)).map(|r| r.location),
        }
    }

    /// How many blocks are known to be here.
    pub fn resident_blocks(&self) -> usize {
        self.own.as_ref().map_or(self.resident.len(), |own| own.0.blocks())
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
            self.stores.sweep(&self.verdicts);
        }
    }

    /// A store was completed: the block is here, and every request that was told MISS is now told HIT.
    pub fn stored(&mut self, key: &BlockKey, location: Location) {
        self.now += 1;
        let tag = self.tags.of(key);
        if self.own.is_none() {
            self.resident.insert(tag, Resident { location, stored: self.now });
        } else if self.verdicts.open_requests() > 0 {
            self.stores.add(tag, self.now, &self.verdicts);
        }
        if let Some(scan) = &mut self.scan {
            scan.removed.remove(&tag);
        }
        self.failures.forgive(tag);
        self.probes.overrule(tag);
    }

    /// A scan of the storage begins; returns its number. An earlier one counts no more, whatever it still finds.
    pub fn scan_begins(&mut self) -> u64 {
        self.last_scan += 1;
        self.scan = Some(Scan { number: self.last_scan, removed: TagSet::default() });
        self.last_scan
    }

    /// A scan met blocks; returns whether it still counts. What was removed meanwhile stays so.
    pub fn scan_found(&mut self, number: u64, blocks: &[(BlockKey, Location)]) -> bool {
        let Some(scan) = self.scan.take_if(|scan| scan.number == number) else { return false };
        for (key, location) in blocks {
            let tag = self.tags.of(key);
            if !scan.removed.contains(&tag) {
                self.found(tag, *location);
            }
        }
        self.scan = Some(scan);
        true
    }

    /// A scan ends. If it has met every block, what is not known to be here is not here: nobody else can add any.
    pub fn scan_ends(&mut self, number: u64, has_met_all: bool) {
        if self.scan.take_if(|scan| scan.number == number).is_some() {
            self.complete = has_met_all;
        }
    }

    /// A scan that runs counts no more.
    pub fn stop_scan(&mut self) {
        self.scan = None;
    }

    /// What is not known to be here is not here, and nobody else can add anything.
    pub fn knows_all(&mut self) {
        self.scan = None;
        self.complete = true;
    }

    /// A probe or a scan met a block. What is known already stays.
    fn found(&mut self, tag: Tag, location: Location) {
        if self.own.is_some() {
            return;
        }
        if let Entry::Vacant(entry) = self.resident.entry(tag) {
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
            self.failures.add(self.tags.of(key), self.now, &self.verdicts);
        }
        let is_probed = !self.complete && self.scan.is_none() && self.own.is_none();
        match presence {
            Presence::Gone => self.removed(key),
            Presence::Doubtful if is_probed => self.removed(key),
            Presence::Doubtful | Presence::Unchanged => false,
        }
    }

    /// The block is not here any more. Returns whether it was known to be.
    pub fn removed(&mut self, key: &BlockKey) -> bool {
        self.now += 1;
        let tag = self.tags.of(key);
        self.probes.overrule(tag);
        if let Some(scan) = &mut self.scan {
            scan.removed.insert(tag);
        }
        match &self.own {
            // Such a store has hidden it itself, unless there is another one under that key.
            Some(own) => !matches!(own.0.find(key), Known::Here(_)),
            None => self.resident.remove(&tag).is_some(),
        }
    }

    /// Whether unknown blocks are answered without a probe.
    pub fn is_complete(&self) -> bool {
        self.own.as_ref().map_or(self.complete, |own| own.0.is_complete())
    }

    /// Forgets everything: residency, verdicts and probes.
    pub fn clear(&mut self) {
        self.now += 1;
        self.resident = TagMap::default();
        self.verdicts = Verdicts::default();
        self.failures = KeyMoments::default();
        self.stores = KeyMoments::default();
        self.probes.clear();
        self.complete = false;
        self.scan = None;
    }

    /// Takes keys whose probes have not begun.
    pub fn begin_probes(&mut self) -> Option<ProbeBatch> {
        self.probes.begin(&self.tags)
    }

    /// How many keys wait to be probed.
    pub fn waiting_probes(&self) -> usize {
        self.probes.waiting()
    }

    /// A probe answered. A store, a removal or a [`Index::clear`] that came after it began wins over its answer.
    pub fn probed(&mut self, key: &BlockKey, ticket: u32, answer: ProbeAnswer, at: Instant) {
        let tag = self.tags.of(key);
        if self.probes.finish(tag, ticket, answer, at)
            && let ProbeAnswer::Present(location) = answer
        {
            self.found(tag, location);
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
