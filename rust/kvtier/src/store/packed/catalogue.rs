//! What this process knows of a pool: which blocks lie where, in all segments, by whoever they were stored.
//!
//! Pure bookkeeping in memory. A block costs 10 bytes in its segment's view and an entry of 16 bytes in its
//! namespace's table, which answers by itself: a lookup touches nothing else. Where somebody wants to be told what goes, it
//! is 43 bytes in the view, which keeps keys then.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use foldhash::quality::RandomState;

use super::format::{Geometry, Header, KeyName, SlotState, TablePage};
use super::pins::Pins;
use super::policy::{Candidate, HOTTEST, Heat, Policy};
use super::segment::SegmentFile;
use super::spots::Spots;
use crate::index::{Map, Set};
use crate::layout::BlockKey;
use crate::store::Location;

/// A block's name within one process: 64 bits under a random seed. A key that is not there has the name of one that is by
/// chance only, in one of 10^13 lookups among a million blocks; what is loaded is compared with the whole key in its trailer,
/// so that it costs a miss then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name(u64);

impl Name {
    /// Where there is no block.
    pub(super) const NONE: Self = Self(0);

    #[cfg(test)]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }
}

/// What gives names to keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Naming(RandomState);

/// A page of a table, with names in place of keys.
#[derive(Debug)]
pub(super) struct NamedPage {
    number: usize,
    sequence: u64,
    /// Slots of blocks, and of dead ones, which have no name.
    slots: Vec<(u32, Option<(Name, KeyName)>)>,
}

/// A namespace's number within one process.
pub(super) type NamespaceId = usize;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) segment: u32,
    pub(super) slot: u32,
}

impl From<Spot> for Location {
    fn from(spot: Spot) -> Self {
        Self(u64::from(spot.segment) << 32 | u64::from(spot.slot))
    }
}

/// Of blocks that are written again when a segment is reclaimed, together.
const MOST_KEPT_BYTES: u64 = 128 << 20;

/// Blocks that room is made for before they are seen.
const MOST_EXPECTED: usize = 4 << 20;

/// What a slot is in memory.
const FREE: u8 = 0;
const BLOCK: u8 = 1;
/// Not to be found, whatever the table says.
const HIDDEN: u8 = 2;

/// One segment file.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Set while this process has its lock.
    pub(super) busy: Arc<AtomicBool>,
    /// The open file, if it is open.
    pub(super) file: Option<Arc<SegmentFile>>,
    /// What it holds, as far as it can be used.
    pub(super) view: Option<View>,
    /// Whether it was said that it can't.
    pub(super) complained: bool,
    /// Whether writing its table has failed: it is no place for more.
    pub(super) failing: bool,
}

/// What one generation of a segment holds.
#[derive(Debug)]
pub(super) struct View {
    pub(super) header: Header,
    pub(super) geometry: Geometry,
    /// Whose blocks they are, where that namespace is open here and they are of its epoch.
    pub(super) namespace: Option<NamespaceId>,
    names: Names,
    states: Vec<u8>,
    heat: Vec<Heat>,
    sequences: Vec<u64>,
    damaged: Vec<bool>,
    blocks: u32,
    /// Slots of pinned blocks.
    pub(super) pinned: Set<u32>,
    /// When it was last used, in seconds since 1970, by this process or another one.
    pub(super) used: u64,
    /// When this process last told the others of its use.
    pub(super) noted: u64,
    /// Cloned by each load.
    pub(super) loading: Arc<()>,
}

/// What a view knows of its blocks' names.
#[derive(Debug)]
enum Names {
    /// Enough to find them in the table.
    Own(Vec<Name>),
    /// What everybody calls them.
    Keys(Vec<KeyName>),
}

/// A namespace that is open here.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) identity: [u8; 32],
    pub(super) epoch: u64,
    pub(super) geometry: Geometry,
    pub(super) payload_bytes: u64,
    pub(super) pins: Pins,
    /// Whether somebody wants to know which blocks go.
    keeps_keys: bool,
    spots: Spots,
    damaged_pages: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub(super) segments: Map<u32, Segment>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) naming: Naming,
    /// Blocks that were here until other processes did something: gone, unless they turn up elsewhere.
    gone: Vec<(NamespaceId, KeyName)>,
}

impl Naming {
    pub(super) fn name_of(&self, name: &KeyName) -> Name {
        Name(self.0.hash_one(name))
    }

    /// Names for all of a table. Takes its time, so it is done where nobody waits.
    pub(super) fn name_pages(&self, geometry: Geometry, pages: &[Option<TablePage>]) -> Vec<Option<NamedPage>> {
        let named = |page: &TablePage| {
            let number = page.number as usize;
            let entries = geometry.slots_of(number).zip(&page.entries);
            let slots = entries.filter_map(|(slot, entry)| {
                let entry = (*entry)?;
                Some((slot, (entry.state == SlotState::Block).then(|| (self.name_of(&entry.name), entry.name))))
            });
            NamedPage { number, sequence: page.sequence, slots: slots.collect() }
        };
        pages.iter().map(|page| page.as_ref().map(named)).collect()
    }
}

impl View {
    fn new(header: Header, geometry: Geometry, used: u64) -> Self {
        Self {
            header,
            geometry,
            namespace: None,
            names: Names::Own(Vec::new()),
            states: Vec::new(),
            heat: Vec::new(),
            sequences: Vec::new(),
            damaged: Vec::new(),
            blocks: 0,
            pinned: Set::default(),
            used,
            noted: used,
            loading: Arc::default(),
        }
    }

    /// Whether some load of this process reads from it.
    pub(super) fn is_held(&self) -> bool {
        Arc::strong_count(&self.loading) > 1
    }

    /// Pages of the table that can't be read.
    pub(super) fn damaged_pages(&self) -> impl Iterator<Item = usize> + '_ {
        self.damaged.iter().enumerate().filter_map(|(page, damaged)| damaged.then_some(page))
    }

    /// Whether its table has room, as far as it is known.
    pub(super) fn has_room(&self) -> bool {
        self.states.contains(&FREE)
    }

    /// Slots of the pinned blocks.
    pub(super) fn pinned_slots(&self) -> Vec<(u32, Heat)> {
        let mut pinned: Vec<_> = self.pinned.iter().map(|slot| (*slot, self.heat_of(*slot))).collect();
        pinned.sort_unstable();
        pinned
    }

    /// Slots of the blocks worth keeping: the pinned ones, then, as far as the policy's share allows, the hottest.
    pub(super) fn kept_slots(&self, policy: &dyn Policy) -> Vec<(u32, Heat)> {
        let mut kept = self.pinned_slots();
        let found = |slot: &u32| self.states.get(*slot as usize) == Some(&BLOCK) && !self.pinned.contains(slot);
        let mut hot: Vec<_> = (0..self.heat.len() as u32)
            .filter(found)
            .map(|slot| (slot, self.heat_of(slot)))
            .filter(|(_, heat)| policy.keeps(*heat))
            .collect();
        hot.sort_by_key(|(slot, heat)| (u8::MAX - heat, *slot));
        // They are all in memory at the same time.
        let most = (self.geometry.slots as usize * policy.most_kept() as usize).div_ceil(100);
        let most = most.min((MOST_KEPT_BYTES / self.geometry.slot_bytes) as usize);
        hot.truncate(most.saturating_sub(kept.len()));
        kept.extend(hot);
        kept
    }

    fn heat_of(&self, slot: u32) -> Heat {
        self.heat.get(slot as usize).copied().unwrap_or_default()
    }

    /// How it looks to a policy.
    pub(super) fn candidate(&self) -> Candidate {
        let born = self.header.born_unix_ns / 1_000_000_000;
        Candidate { born, used: self.used.max(born) }
    }
}

impl Names {
    fn new(slots: usize, keeps_keys: bool) -> Self {
        if keeps_keys { Self::Keys(vec![KeyName::NONE; slots]) } else { Self::Own(vec![Name::NONE; slots]) }
    }

    fn set(&mut self, slot: usize, name: Name, key: &KeyName) {
        match self {
            Self::Own(names) => names[slot] = name,
            Self::Keys(keys) => keys[slot] = *key,
        }
    }

    fn of(&self, slot: usize, naming: &Naming) -> Name {
        match self {
            Self::Own(names) => names[slot],
            Self::Keys(keys) => naming.name_of(&keys[slot]),
        }
    }

    /// The keys, where they are kept.
    fn keys(&self) -> &[KeyName] {
        match self {
            Self::Own(_) => &[],
            Self::Keys(keys) => keys,
        }
    }
}

impl Namespace {
    pub(super) fn new(name: String, identity: [u8; 32], epoch: u64, geometry: Geometry, payload_bytes: u64) -> Self {
        let (pins, spots) = (Pins::default(), Spots::new());
        Self { name, identity, epoch, geometry, payload_bytes, pins, keeps_keys: false, spots, damaged_pages: 0 }
    }

    /// What goes is to be told, for segments that become known from here on.
    pub(super) fn keep_keys(&mut self) {
        self.keeps_keys = true;
    }

    pub(super) fn blocks(&self) -> usize {
        self.spots.len()
    }

    /// Whether some of its blocks may be there without being known.
    pub(super) fn is_complete(&self) -> bool {
        self.damaged_pages == 0
    }

    fn owns(&self, header: &Header) -> bool {
        self.name == header.namespace && self.identity == header.identity && self.epoch == header.epoch
    }
}

impl Catalogue {
    /// The name of a block within this process.
    pub(super) fn name_of(&self, key: &BlockKey) -> Name {
        self.naming.name_of(&KeyName::of(key))
    }

    /// Where a block of a namespace lies.
    pub(super) fn find(&self, namespace: NamespaceId, name: Name) -> Option<Spot> {
        self.namespaces.get(namespace)?.spots.find(name).next()
    }

    /// All places where blocks of that name lie: two processes may have stored the same one.
    pub(super) fn places_of(&self, namespace: NamespaceId, name: Name) -> Vec<Spot> {
        let Some(known) = self.namespaces.get(namespace) else { return Vec::new() };
        known.spots.find(name).collect()
    }

    /// The segment's view, if it has one.
    pub(super) fn view(&self, segment: u32) -> Option<&View> {
        self.segments.get(&segment)?.view.as_ref()
    }

    pub(super) fn view_mut(&mut self, segment: u32) -> Option<&mut View> {
        self.segments.get_mut(&segment)?.view.as_mut()
    }

    /// Which of the open namespaces a segment with this header belongs to.
    pub(super) fn namespace_of(&self, header: &Header) -> Option<NamespaceId> {
        self.namespaces.iter().position(|namespace| namespace.owns(header))
    }

    /// As many segments are about to be read, perhaps all of this namespace: growing the table step by step would cost more
    /// than reading them.
    pub(super) fn expect(&mut self, namespace: NamespaceId, segments: usize) {
        if let Some(Namespace { spots, geometry, .. }) = self.namespaces.get_mut(namespace) {
            let blocks = segments.saturating_mul(geometry.slots as usize).min(MOST_EXPECTED);
            spots.reserve(blocks);
        }
    }

    /// Takes over what a segment's table says, as [`Catalogue::install_named`].
    pub(super) fn install(
        &mut self,
        header: &Header,
        geometry: Geometry,
        pages: Option<&[Option<TablePage>]>,
        used: u64,
    ) -> bool {
        let pages = pages.map(|pages| self.naming.name_pages(geometry, pages));
        self.install_named(header, geometry, pages.as_deref(), used)
    }

    /// Takes over what a segment's table says. `pages` are those of its namespace, if that is open here; what can't be read
    /// is damaged. Returns false when a namespace has become open that the pages were not read for.
    pub(super) fn install_named(
        &mut self,
        header: &Header,
        geometry: Geometry,
        pages: Option<&[Option<NamedPage>]>,
        used: u64,
    ) -> bool {
        let namespace = self.namespace_of(header);
        if namespace.is_some() && pages.is_none() {
            return false;
        }
        let known = self.view(header.segment).is_some_and(|view| {
            view.header.generation == header.generation
                && view.header.epoch == header.epoch
                && view.namespace == namespace
        });
        if !known {
            self.drop_view(header.segment);
            let view = View::new(header.clone(), geometry, used);
            self.segments.entry(header.segment).or_default().view = Some(view);
        }
        if let Some(view) = self.view_mut(header.segment) {
            view.used = view.used.max(used);
            view.header = header.clone();
        }
        let (Some(namespace), Some(pages)) = (namespace, pages) else { return true };
        self.prepare(header.segment, namespace);
        for (number, page) in pages.iter().enumerate() {
            match page {
                Some(page) => self.install_page(header.segment, page),
                None => self.set_damaged(header.segment, number, true),
            }
        }
        true
    }

    /// Makes room in a view for what its table says.
    fn prepare(&mut self, segment: u32, namespace: NamespaceId) {
        let keeps_keys = self.namespaces.get(namespace).is_some_and(|namespace| namespace.keeps_keys);
        let Some(view) = self.view_mut(segment) else { return };
        let slots = view.geometry.slots as usize;
        if view.states.len() != slots {
            let pages = view.geometry.table_pages();
            view.names = Names::new(slots, keeps_keys);
            view.states = vec![FREE; slots];
            view.heat = vec![0; slots];
            view.sequences = vec![0; pages];
            view.damaged = vec![false; pages];
        }
        view.namespace = Some(namespace);
    }

    fn install_page(&mut self, segment: u32, page: &NamedPage) {
        self.set_damaged(segment, page.number, false);
        let Some(view) = self.view_mut(segment) else { return };
        match view.sequences.get_mut(page.number) {
            Some(known) if *known < page.sequence => *known = page.sequence,
            _ => return,
        }
        for (slot, name) in &page.slots {
            let place = Spot { segment, slot: *slot };
            match name {
                Some((name, key)) => self.add_named(place, *name, key),
                None => self.lose(place),
            }
        }
    }

    /// A block is there.
    pub(super) fn add(&mut self, place: Spot, name: &KeyName) {
        self.add_named(place, self.naming.name_of(name), name);
    }

    fn add_named(&mut self, place: Spot, name: Name, key: &KeyName) {
        let Some(view) = self.segments.get_mut(&place.segment).and_then(|segment| segment.view.as_mut()) else {
            return;
        };
        let (slot, Some(namespace)) = (place.slot as usize, view.namespace) else { return };
        if view.states.get(slot) != Some(&FREE) {
            return;
        }
        view.names.set(slot, name, key);
        view.states[slot] = BLOCK;
        view.blocks += 1;
        let Some(namespace) = self.namespaces.get_mut(namespace) else { return };
        if namespace.pins.contains(name) {
            view.pinned.insert(place.slot);
        }
        namespace.spots.insert(name, place);
    }

    /// A block is not to be found any more. Returns whether it could be until now.
    pub(super) fn hide(&mut self, place: Spot) -> bool {
        let Some(view) = self.segments.get_mut(&place.segment).and_then(|segment| segment.view.as_mut()) else {
            return false;
        };
        let slot = place.slot as usize;
        let was_there = view.states.get(slot) == Some(&BLOCK);
        if let Some(state) = view.states.get_mut(slot) {
            *state = HIDDEN;
        }
        view.pinned.remove(&place.slot);
        if was_there {
            view.blocks -= 1;
            let name = view.names.of(slot, &self.naming);
            if let Some(namespace) = view.namespace.and_then(|namespace| self.namespaces.get_mut(namespace)) {
                namespace.spots.remove(name, place);
            }
        }
        was_there
    }

    fn set_damaged(&mut self, segment: u32, page: usize, damaged: bool) {
        let Some(view) = self.segments.get_mut(&segment).and_then(|segment| segment.view.as_mut()) else { return };
        let Some(known) = view.damaged.get_mut(page) else { return };
        if *known != damaged {
            *known = damaged;
            if let Some(namespace) = view.namespace.and_then(|namespace| self.namespaces.get_mut(namespace)) {
                namespace.damaged_pages =
                    if damaged { namespace.damaged_pages + 1 } else { namespace.damaged_pages - 1 };
            }
        }
    }

    /// Another process has found that a block is of no use.
    fn lose(&mut self, place: Spot) {
        let known = self.view(place.segment).and_then(|view| {
            let key = view.names.keys().get(place.slot as usize)?;
            Some((view.namespace?, *key))
        });
        if self.hide(place) {
            self.gone.extend(known);
        }
    }

    /// Nothing is known of a segment's content any more: another process has taken it, or it can't be read.
    pub(super) fn drop_view(&mut self, segment: u32) {
        if let Some(view) = self.take_view(segment)
            && let Some(namespace) = view.namespace
        {
            let blocks = view.names.keys().iter().zip(&view.states).filter(|(_, state)| **state == BLOCK);
            self.gone.extend(blocks.map(|(key, _)| (namespace, *key)));
        }
    }

    /// Takes out what is known of a segment's content; whoever does so tells what goes with it.
    pub(super) fn take_view(&mut self, segment: u32) -> Option<View> {
        let view = self.segments.get_mut(&segment)?.view.take()?;
        let Some(namespace) = view.namespace.and_then(|namespace| self.namespaces.get_mut(namespace)) else {
            return Some(view);
        };
        namespace.damaged_pages -= view.damaged.iter().filter(|damaged| **damaged).count();
        for (slot, state) in view.states.iter().enumerate() {
            if *state == BLOCK {
                let name = view.names.of(slot, &self.naming);
                namespace.spots.remove(name, Spot { segment, slot: slot as u32 });
            }
        }
        Some(view)
    }

    /// Blocks that are gone from where they were by what other processes did since the last time.
    pub(super) fn take_gone(&mut self) -> Vec<(NamespaceId, KeyName)> {
        std::mem::take(&mut self.gone)
    }

    /// A namespace has another epoch: what is known of its segments is worth nothing.
    pub(super) fn set_epoch(&mut self, namespace: NamespaceId, epoch: u64) {
        let Some(known) = self.namespaces.get_mut(namespace) else { return };
        known.epoch = epoch;
        known.pins = Pins::default();
        known.spots = Spots::new();
        known.damaged_pages = 0;
        let views = self.segments.values_mut().filter_map(|segment| segment.view.as_mut());
        for view in views.filter(|view| view.namespace == Some(namespace)) {
            let (header, geometry, used) = (view.header.clone(), view.geometry, view.used);
            let loading = Arc::clone(&view.loading);
            *view = View { loading, ..View::new(header, geometry, used) };
        }
    }

    /// A block was used.
    pub(super) fn warm(&mut self, spot: Spot, now: u64) {
        let Some(view) = self.view_mut(spot.segment) else { return };
        view.used = view.used.max(now);
        if let Some(heat) = view.heat.get_mut(spot.slot as usize) {
            *heat = (*heat + 1).min(HOTTEST);
        }
    }

    /// How hot a block is from now on.
    pub(super) fn set_heat(&mut self, spot: Spot, heat: Heat) {
        if let Some(known) = self.view_mut(spot.segment).and_then(|view| view.heat.get_mut(spot.slot as usize)) {
            *known = heat;
        }
    }
}
