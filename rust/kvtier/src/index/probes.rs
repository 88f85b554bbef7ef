//! Questions to the storage that are under way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::hash_map::Entry;

use super::tags::{Tag, TagMap, Tags};
use crate::layout::BlockKey;
use crate::store::Location;

/// How long an ABSENT answers also those who had not asked before it came: about one step of a scheduler. Afterwards a
/// new question probes anew, since other processes store blocks too.
const ABSENT_FRESH: Duration = Duration::from_millis(5);

/// Keys in one probe: enough to spread a step's questions over a few threads, few enough that the first answers don't
/// wait for the last.
pub const PROBE_BATCH: usize = 64;

/// Keys to probe together: [`PROBE_BATCH`] at most.
#[derive(Debug)]
pub struct ProbeBatch {
    /// The keys, each once.
    pub keys: Vec<BlockKey>,
    /// Goes back with the answers, so that answers to forgotten questions are known as such.
    pub ticket: u32,
}

/// What the storage said about a key.
#[derive(Clone, Copy, Debug)]
pub enum ProbeAnswer {
    /// The block is there.
    Present(Location),
    /// It isn't, or the storage could not say: for the one who asks, both are a miss.
    Absent,
}

/// What is known of a probe when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Absent,
    Pending { queued: bool },
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// Nobody in particular: an answer is worth its moment.
    Anyone,
    /// A request, for the first time.
    First,
    /// A request that was told RETRY, first at that time.
    Waiting(Instant),
}

#[derive(Debug)]
enum Probe {
    /// In `waiting`, not begun.
    Queued { asked: Instant },
    /// Under way since the batch of that ticket; `overruled` when a later event knows better.
    Running { asked: Instant, ticket: u32, overruled: bool },
    /// Answered: not there.
    Absent { at: Instant },
}

/// All probes that are queued, running or freshly answered.
#[derive(Debug, Default)]
pub(super) struct Probes {
    by_tag: TagMap<Probe>,
    /// Keys that wait, in batches as they are handed out, so that none of the many is moved again.
    batches: VecDeque<Vec<BlockKey>>,
    waiting: usize,
    last_ticket: u32,
    swept: Option<Instant>,
}

impl Probes {
    /// Asks about `key`, whose tag is `tag`.
    pub(super) fn ask(&mut self, key: &BlockKey, tag: Tag, asker: Asker, now: Instant, timeout: Duration) -> Finding {
        if let Asker::Waiting(since) = asker
            && now.saturating_duration_since(since) > timeout
        {
            return Finding::Absent;
        }
        let mut entry = match self.by_tag.entry(tag) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                entry.insert(Probe::Queued { asked: now });
                self.wait(key);
                return Finding::Pending { queued: true };
            }
        };
        match (entry.get(), asker) {
            (Probe::Absent { .. }, Asker::Anyone) => {
                entry.remove();
                Finding::Absent
            }
            (Probe::Absent { at }, Asker::Waiting(since)) if since <= *at => Finding::Absent,
            (Probe::Absent { at }, _) if now.saturating_duration_since(*at) <= ABSENT_FRESH => Finding::Absent,
            (Probe::Absent { .. }, _) => {
                entry.insert(Probe::Queued { asked: now });
                self.wait(key);
                Finding::Pending { queued: true }
            }
            (Probe::Queued { asked } | Probe::Running { asked, .. }, Asker::Anyone)
                if now.saturating_duration_since(*asked) > timeout =>
            {
                Finding::Absent
            }
            (Probe::Queued { .. } | Probe::Running { .. }, _) => Finding::Pending { queued: false },
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    fn wait(&mut self, key: &BlockKey) {
        self.waiting += 1;
        match self.batches.back_mut() {
            Some(batch) if batch.len() < PROBE_BATCH => batch.push(*key),
            _ => {
                let mut batch = Vec::with_capacity(PROBE_BATCH);
                batch.push(*key);
                self.batches.push_back(batch);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    /// The oldest questions.
    pub(super) fn begin(&mut self, tags: &Tags) -> Option<ProbeBatch> {
        let mut keys = self.batches.pop_front()?;
        self.waiting -= keys.len();
        self.last_ticket = self.last_ticket.wrapping_add(1);
        let ticket = self.last_ticket;
        keys.retain(|key| match self.by_tag.get_mut(&tags.of(key)) {
            Some(probe) if let Probe::Queued { asked } = *probe => {
                *probe = Probe::Running { asked, ticket, overruled: false };
                true
            }
            _ => false,
        });
        Some(ProbeBatch { keys, ticket })
    }

    /// An event knows better than whatever a probe of that key will say.
    pub(super) fn overrule(&mut self, tag: Tag) {
        if self.by_tag.is_empty() {
            return;
        }
        match self.by_tag.get_mut(&tag) {
            Some(Probe::Running { overruled, .. }) => *overruled = true,
            // A question that is still queued will see the storage as it is then.
            Some(Probe::Queued { .. }) | None => {}
            Some(Probe::Absent { .. }) => {
                self.by_tag.remove(&tag);
            }
        }
    }

    /// Takes an answer; true when it counts.
    pub(super) fn finish(&mut self, tag: Tag, ticket: u32, answer: ProbeAnswer, at: Instant) -> bool {
        let Entry::Occupied(mut probe) = self.by_tag.entry(tag) else { return false };
        let Probe::Running { ticket: begun, overruled, .. } = *probe.get() else { return false };
        if begun != ticket {
            return false;
        }
        if overruled || matches!(answer, ProbeAnswer::Present(_)) {
            // Whoever asks next is answered by residency, or asks the storage anew.
            probe.remove();
        } else {
            probe.insert(Probe::Absent { at });
        }
        !overruled
    }

    pub(super) fn clear(&mut self) {
        self.by_tag = TagMap::default();
        self.batches = VecDeque::new();
        self.waiting = 0;
    }

    /// Drops answers and questions that nobody can be waiting for any more. Questions pile up while the storage is stuck;
    /// they stay for two timeouts, so that whoever asks without a request is told MISS in between.
    pub(super) fn sweep(&mut self, now: Instant, timeout: Duration, tags: &Tags) {
        if self.swept.is_some_and(|swept| now.saturating_duration_since(swept) <= timeout) {
            return;
        }
        self.swept = Some(now);
        self.by_tag.retain(|_, probe| match probe {
            Probe::Queued { asked } => now.saturating_duration_since(*asked) <= timeout * 2,
            // The storage has them, and they are as few as it takes at once.
            Probe::Running { .. } => true,
            Probe::Absent { at } => now.saturating_duration_since(*at) <= timeout,
        });
        let probes = &self.by_tag;
        for batch in &mut self.batches {
            batch.retain(|key| matches!(probes.get(&tags.of(key)), Some(Probe::Queued { .. })));
        }
        self.batches.retain(|batch| !batch.is_empty());
        self.waiting = self.batches.iter().map(Vec::len).sum();
    }
}
