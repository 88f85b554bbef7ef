//! A pool's segments without any storage, driven by requests for prefixes of blocks: what a policy makes of a trace.

use std::collections::{BTreeMap, HashMap};

use kvtier::store::packed::policy::{Candidate, HOTTEST, Heat, Policy};

/// What a trace came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Blocks that requests asked for.
    pub asked: u64,
    /// Of those, blocks found: a prefix ends at the first that is not.
    pub found: u64,
    /// Blocks written for the first time, or again after they were dropped.
    pub stored: u64,
    /// Blocks written again when their segment was reclaimed.
    pub kept: u64,
}

impl Outcome {
    /// Share of blocks found.
    pub fn hit_rate(&self) -> f64 {
        self.found as f64 / self.asked.max(1) as f64
    }

    /// Share of what is written that is written again.
    pub fn kept_share(&self) -> f64 {
        self.kept as f64 / (self.stored + self.kept).max(1) as f64
    }
}

/// Which block makes room for the next, where each goes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// The one that was stored first.
    Fifo,
    /// The one that was used longest ago.
    Lru,
}

/// Runs requests through a cache of `room` blocks that evicts them one by one, as no pool of segments can: what policies
/// of segments are compared with.
pub fn run_plain<'r>(plain: Plain, room: usize, requests: impl IntoIterator<Item = &'r [u64]>) -> Outcome {
    let mut outcome = Outcome::default();
    // Where each block stands in line, and the line.
    let (mut places, mut line) = (HashMap::new(), BTreeMap::new());
    let mut last = 0_u64;
    for request in requests {
        outcome.asked += request.len() as u64;
        let mut gap = false;
        for block in request {
            let place = places.get(block).copied();
            gap |= place.is_none();
            outcome.found += u64::from(!gap);
            match place {
                Some(place) if plain == Plain::Lru && !gap => line.remove(&place),
                Some(_) => continue,
                None => {
                    outcome.stored += 1;
                    // What is asked for at the moment makes no room for itself: it stands at the end.
                    if places.len() >= room {
                        line.pop_first().and_then(|(_, oldest)| places.remove(&oldest));
                    }
                    None
                }
            };
            last += 1;
            places.insert(*block, last);
            line.insert(last, *block);
        }
    }
    outcome
}

#[derive(Default)]
struct Segment {
    blocks: Vec<u64>,
    born: u64,
    used: u64,
}

struct Pool<'a> {
    policy: &'a dyn Policy,
    slots: usize,
    most_segments: usize,
    segments: Vec<Segment>,
    /// Where each block lies, and how hot it is.
    index: HashMap<u64, (usize, Heat)>,
    active: usize,
    now: u64,
    outcome: Outcome,
}

/// Runs requests, each the ids of a prefix's blocks in order, through a pool of `most_segments` with `slots` each.
pub fn run<'r>(
    policy: &dyn Policy,
    slots: usize,
    most_segments: usize,
    requests: impl IntoIterator<Item = &'r [u64]>,
) -> Outcome {
    let mut pool = Pool {
        policy,
        slots,
        most_segments,
        segments: vec![Segment::default()],
        index: HashMap::new(),
        active: 0,
        now: 0,
        outcome: Outcome::default(),
    };
    for request in requests {
        pool.now += 1;
        pool.outcome.asked += request.len() as u64;
        let found = request.iter().take_while(|block| pool.use_block(**block)).count();
        pool.outcome.found += found as u64;
        for block in &request[found..] {
            if !pool.index.contains_key(block) {
                pool.outcome.stored += 1;
                pool.append(*block, 0);
            }
        }
    }
    pool.outcome
}

impl Pool<'_> {
    fn use_block(&mut self, block: u64) -> bool {
        let Some((segment, heat)) = self.index.get_mut(&block) else { return false };
        *heat = (*heat + 1).min(HOTTEST);
        self.segments[*segment].used = self.now;
        true
    }

    fn append(&mut self, block: u64, heat: Heat) {
        if self.segments[self.active].blocks.len() == self.slots {
            self.next_segment();
        }
        self.segments[self.active].blocks.push(block);
        self.index.insert(block, (self.active, heat));
    }

    fn next_segment(&mut self) {
        if self.segments.len() < self.most_segments {
            self.segments.push(Segment { born: self.now, used: self.now, blocks: Vec::new() });
            self.active = self.segments.len() - 1;
            return;
        }
        let rank = |i: &usize| (self.policy.rank(&self.candidate(*i)), self.segments[*i].born);
        let victim = (0..self.segments.len()).filter(|i| *i != self.active).min_by_key(rank).unwrap_or(0);
        let dropped = std::mem::take(&mut self.segments[victim].blocks);
        let mut kept: Vec<_> = dropped
            .iter()
            .filter_map(|block| Some((self.index.remove(block)?.1, *block)))
            .filter(|(heat, _)| self.policy.keeps(*heat))
            .collect();
        kept.sort_by_key(|(heat, _)| u8::MAX - heat);
        kept.truncate((self.slots * self.policy.most_kept() as usize).div_ceil(100));
        self.segments[victim] = Segment { born: self.now, used: self.now, blocks: Vec::new() };
        self.active = victim;
        self.outcome.kept += kept.len() as u64;
        for (heat, block) in kept {
            self.append(block, heat - 1);
        }
    }

    fn candidate(&self, segment: usize) -> Candidate {
        let Segment { born, used, .. } = &self.segments[segment];
        Candidate { born: *born, used: *used }
    }
}
