//! A pool as one process has it open: shared by all of its tiers there, whatever their namespaces.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, fdatasync, openat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::catalogue::{Catalogue, NamespaceId, Segment, Spot};
use super::format::{Geometry, Header, NamespaceRecord, Superblock, TablePage};
use super::hints::Hints;
use super::own::{Claim, OwnSegment, SlotTicket};
use super::policy::Policy;
use super::rebuild::Rebuild;
use super::scrub::Scrub;
use super::segment::{Access, SegmentFile, Through};
use super::site::{self, Site};
use crate::buffer::LeaseWatch;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{DirectIo, let_go_in_child};
use crate::layout::BlockKey;
use crate::process::Home;
use crate::recurring::Recurring;
use crate::store::{Done, OnDropped, Probed};
use crate::sync::{Condvar, Mutex};

/// How often a table that looks damaged is read before it counts as such: its owner may be writing it just now.
const LOOKS: usize = 4;
/// The same for pages of a table, at each reading: whoever writes one takes no millisecond for it, as a rule.
const LOOKS_AT_PAGES: usize = 3;

/// A pool, open.
pub(super) struct Pool {
    pub(super) home: Home,
    pub(super) site: Site,
    pub(super) access: Access,
    pub(super) direct: Arc<DirectIo>,
    pub(super) policy: Box<dyn Policy>,
    pub(super) hints: Arc<Hints>,
    /// Tells this object's segments from those of all others.
    pub(super) nonce: [u8; 16],
    pub(super) state: Mutex<State>,
    /// Something waits for the keeper.
    pub(super) wake: Condvar,
    /// What a forked child has to let go of: locks, by their descriptions.
    locked: Mutex<Vec<Arc<File>>>,
    pub(super) failed_work: Recurring,
    pub(super) scrub: Scrub,
    pub(super) rebuild: Rebuild,
    /// What the hints said when they were last followed.
    followed: Mutex<Vec<u64>>,
}

/// What changes. The lock is never held across IO.
#[derive(Default)]
pub(super) struct State {
    pub(super) catalogue: Catalogue,
    /// As many as the catalogue has namespaces.
    pub(super) stations: Vec<Station>,
    pub(super) stopped: bool,
    /// Whether somebody has called the keeper since it last looked.
    pub(super) alarm: bool,
}

/// One namespace's part in storing.
#[derive(Default)]
pub(super) struct Station {
    /// How many tiers of this process have it open.
    pub(super) users: usize,
    /// The segment that blocks go to.
    pub(super) active: Option<Arc<OwnSegment>>,
    /// The one that comes next, if it is ready.
    pub(super) spare: Option<Arc<OwnSegment>>,
    /// Whether a slot was taken since the keeper last looked.
    pub(super) has_stored: bool,
    /// Stores without a slot, the oldest first.
    pub(super) waiting: VecDeque<Waiter>,
    /// Since when no segment could be had.
    pub(super) starving: Option<Instant>,
    /// Who wants to know what is dropped.
    pub(super) listeners: Vec<Arc<OnDropped>>,
    /// Probes of keys that damaged tables may hold.
    pub(super) probes: Vec<(Vec<BlockKey>, Done<Vec<Probed>>)>,
    /// Where the epoch is read from.
    pub(super) record: Option<Arc<File>>,
}

/// A store that waits for a slot.
pub(super) struct Waiter {
    pub(super) watch: LeaseWatch,
    pub(super) then: Box<dyn FnOnce(Result<SlotTicket>) + Send>,
}

impl Pool {
    /// A pool at `site`, of which nothing is known yet.
    pub(super) fn new(site: Site, access: Access, direct: DirectIo, policy: Box<dyn Policy>) -> Self {
        let hints = Arc::new(Hints::open(&site.dir, access.read_only, access.mode));
        let scrub = Scrub::look(&site, access.read_only, access.mode);
        Self {
            home: Home::here(),
            access,
            direct: Arc::new(direct),
            policy,
            hints,
            nonce: site::random(),
            state: Mutex::default(),
            wake: Condvar::new(),
            locked: Mutex::default(),
            failed_work: Recurring::default(),
            scrub,
            rebuild: Rebuild::default(),
            followed: Mutex::default(),
            site,
        }
    }

    pub(super) fn superblock(&self) -> &Superblock {
        &self.site.superblock
    }

    pub(super) fn dir(&self) -> &OwnedFd {
        &self.site.dir
    }

    /// Opens a namespace of the pool for one more tier, and reads what lies in it. With `tells_all`, listeners are also told what
    /// other processes drop.
    ///
    /// # Errors
    /// `Config` when a block doesn't fit into a segment; what reading fails with.
    pub(super) fn open_namespace(
        &self,
        name: &str,
        identity: [u8; 32],
        payload_bytes: u64,
        slot_bytes: u64,
        tells_all: bool,
    ) -> Result<NamespaceId> {
        let segment_bytes = self.superblock().segment_bytes;
        let Some(geometry) = Geometry::of(segment_bytes, slot_bytes) else {
            let message = format!(
                "a block takes {slot_bytes} bytes, and the pool's segments of {segment_bytes} have no room for one; \
                 give larger segments by segment_bytes when the pool is made"
            );
            return Err(Error::new(ErrorKind::Config, message));
        };
        {
            let mut state = self.state.lock();
            let known = state.catalogue.namespaces.iter().position(|n| n.name == name && n.identity == identity);
            if let Some(known) = known {
                if state.catalogue.namespaces[known].geometry != geometry {
                    return Err(Error::new(ErrorKind::Config, "blocks of one namespace have one length"));
                }
                state.stations[known].users += 1;
                if tells_all {
                    state.catalogue.namespaces[known].keep_keys();
                }
                return Ok(known);
            }
        }
        let (record, epoch) = self.open_record(name, identity)?;
        let namespace = {
            let mut state = self.state.lock();
            let mut namespace =
                super::catalogue::Namespace::new(name.to_owned(), identity, epoch, geometry, payload_bytes);
            if tells_all {
                namespace.keep_keys();
            }
            state.catalogue.namespaces.push(namespace);
            state.stations.push(Station { users: 1, record, ..Station::default() });
            state.stations.len() - 1
        };
        // What was noted before now is read here.
        self.hints.changed(&mut self.followed.lock());
        let segments = self.site.segments()?;
        self.state.lock().catalogue.expect(namespace, segments.len());
        for_each(&segments, AT_ONCE, |segment| self.refresh(*segment));
        let mut state = self.state.lock();
        if !state.catalogue.namespaces[namespace].is_complete() {
            // A question, so that tables are rebuilt at once.
            state.stations[namespace].probes.push((Vec::new(), Done::new(|_| ())));
            state.alarm = true;
            self.wake.notify_all();
        }
        drop(state);
        Ok(namespace)
    }

    /// The namespace's record, made if it is missing, and its epoch.
    fn open_record(&self, name: &str, identity: [u8; 32]) -> Result<(Option<Arc<File>>, u64)> {
        let failed = |e: Errno| Error::from_io("opening the namespace's record", e.into()).with("namespace", name);
        let file_name = record_name(name);
        let how = if self.access.read_only { OFlags::RDONLY } else { OFlags::RDWR | OFlags::CREATE };
        let opened = openat(self.dir(), file_name, how | OFlags::CLOEXEC | OFlags::NOFOLLOW, self.access.mode);
        let file = match opened {
            Ok(file) => Arc::new(File::from(file)),
            Err(Errno::NOENT) => return Ok((None, 0)),
            Err(errno) => return Err(failed(errno)),
        };
        let page = site::read_page(&file).map_err(failed)?;
        match NamespaceRecord::decode(&page) {
            Ok(record) if record.pool == self.superblock().pool && record.name == name => {
                return Ok((Some(file), record.epoch));
            }
            Err(error) if error.kind() == ErrorKind::UnsupportedVersion => return Err(error.with("namespace", name)),
            _ => {}
        }
        // New, or lost. What was reset before must not come back, so a lost one begins after all that is there.
        let newest = |segment| self.header_of(segment).ok().filter(|h| h.namespace == name).map_or(0, |h| h.epoch);
        let newest = self.site.segments()?.into_iter().map(newest).max().unwrap_or(0);
        let epoch = newest + 1;
        if !self.access.read_only {
            self.write_record(&file, name, identity, epoch).map_err(failed)?;
        }
        Ok((Some(file), epoch))
    }

    fn write_record(&self, file: &File, name: &str, identity: [u8; 32], epoch: u64) -> rustix::io::Result<()> {
        let record = NamespaceRecord { pool: self.superblock().pool, epoch, identity, name: name.to_owned() };
        let page = record.encode();
        if rustix::io::pwrite(file, &page, 0)? != page.len() {
            return Err(Errno::IO);
        }
        fdatasync(file)
    }

    /// Takes all blocks of a namespace away, for every process.
    pub(super) fn reset(&self, namespace: NamespaceId) -> Result<()> {
        let (record, name, identity, known) = {
            let state = self.state.lock();
            let (Some(station), Some(known)) =
                (state.stations.get(namespace), state.catalogue.namespaces.get(namespace))
            else {
                return Err(Error::new(ErrorKind::Internal, "no such namespace"));
            };
            (station.record.clone(), known.name.clone(), known.identity, known.epoch)
        };
        let Some(record) = record else { return Ok(()) };
        let failed = |e: Errno| Error::from_io("resetting the namespace", e.into()).with("namespace", &name);
        // Another process may have reset it just now.
        let stored = site::read_page(&record).ok().and_then(|page| NamespaceRecord::decode(&page).ok());
        let epoch = stored.map_or(known, |record| record.epoch.max(known)) + 1;
        self.write_record(&record, &name, identity, epoch).map_err(failed)?;
        self.begin_epoch(namespace, epoch);
        Ok(())
    }

    /// From now on, only segments of `epoch` count.
    fn begin_epoch(&self, namespace: NamespaceId, epoch: u64) {
        let given_up = {
            let mut state = self.state.lock();
            state.catalogue.set_epoch(namespace, epoch);
            let station = &mut state.stations[namespace];
            (station.active.take(), station.spare.take())
        };
        drop(given_up);
    }

    /// Learns what other processes have stored, and this one, since the last time.
    pub(super) fn follow(&self) {
        // Held until all is known: whoever comes meanwhile wants to know it, too.
        let mut followed = self.followed.lock();
        for segment in self.hints.changed(&mut followed) {
            self.refresh(segment);
        }
    }

    /// Looks whether other processes have reset namespaces that are open here.
    pub(super) fn follow_epochs(&self) {
        let records: Vec<_> = {
            let state = self.state.lock();
            let known = state.catalogue.namespaces.iter().map(|namespace| namespace.epoch);
            let records = state.stations.iter().map(|station| station.record.clone());
            known.zip(records).enumerate().filter_map(|(id, (epoch, record))| Some((id, epoch, record?))).collect()
        };
        for (namespace, epoch, record) in records {
            let Ok(page) = site::read_page(&record) else { continue };
            // Torn while it is written, it is read at the next look.
            if let Ok(record) = NamespaceRecord::decode(&page)
                && record.epoch > epoch
            {
                self.begin_epoch(namespace, record.epoch);
                for segment in self.site.segments().unwrap_or_default() {
                    self.refresh(segment);
                }
            }
        }
    }

    /// The segment's file, opened if it isn't.
    pub(super) fn file_of(&self, id: u32) -> Result<Arc<SegmentFile>> {
        if let Some(file) = self.state.lock().catalogue.segments.get(&id).and_then(|segment| segment.file.clone()) {
            return Ok(file);
        }
        let file = SegmentFile::open(self.dir(), id, self.access)
            .map_err(|e| Error::from_io("opening a segment", e.into()).with("segment", super::segment::name_of(id)))?;
        Ok(self.keep_file(file))
    }

    /// Keeps an open file for the next one who wants it. Who was quicker wins, so that a segment's lock is taken through
    /// one description only.
    pub(super) fn keep_file(&self, file: SegmentFile) -> Arc<SegmentFile> {
        let mut state = self.state.lock();
        let segment = state.catalogue.segments.entry(file.id).or_default();
        Arc::clone(segment.file.get_or_insert_with(|| Arc::new(file)))
    }

    /// As [`Pool::file_of`], and sure to be the one that the segment has now.
    fn current_file_of(&self, id: u32) -> Result<Arc<SegmentFile>> {
        let file = self.file_of(id)?;
        if !file.is_gone() {
            return Ok(file);
        }
        self.forget_file(&file);
        self.file_of(id)
    }

    fn header_of(&self, id: u32) -> Result<Header> {
        self.current_file_of(id)?.header(self.superblock().pool)
    }

    /// The generation that a segment has on storage; `None` when it can't be told, or there is none. Costs two system calls
    /// as a rule.
    pub(super) fn generation_of(&self, id: u32) -> Option<u64> {
        self.current_file_of(id).ok()?.generation(self.superblock().pool)
    }

    /// Reads what a segment holds, unless this process is its owner and knows.
    pub(super) fn refresh(&self, id: u32) {
        for _ in 0..LOOKS {
            if self.is_busy(id) {
                return;
            }
            match self.look(id) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return self.lose(id, &error),
            }
        }
    }

    fn is_busy(&self, id: u32) -> bool {
        let state = self.state.lock();
        state.catalogue.segments.get(&id).is_some_and(|segment| segment.busy.load(Ordering::Acquire))
    }

    /// One look at a segment; false when it has to be looked at again.
    fn look(&self, id: u32) -> Result<bool> {
        let file = self.current_file_of(id)?;
        let header = file.header(self.superblock().pool)?;
        let geometry = self.geometry_of(&header)?;
        let (is_open, naming) = {
            let catalogue = &self.state.lock().catalogue;
            (catalogue.namespace_of(&header).is_some(), catalogue.naming.clone())
        };
        let pages = if is_open { Some(Self::read_table(&file, &header, geometry)?) } else { None };
        let pages = pages.map(|pages| naming.name_pages(geometry, &pages));
        if file.header(self.superblock().pool)? != header {
            return Ok(false);
        }
        let used = file.used();
        let mut state = self.state.lock();
        if state.catalogue.segments.get(&id).is_some_and(|s| s.busy.load(Ordering::Acquire)) {
            return Ok(true);
        }
        Ok(state.catalogue.install_named(&header, geometry, pages.as_deref(), used))
    }

    /// The geometry that a header states.
    pub(super) fn geometry_of(&self, header: &Header) -> Result<Geometry> {
        Geometry::stated(header, self.superblock().segment_bytes)
            .ok_or_else(|| Error::new(ErrorKind::Foreign, "the segment's header states slots that can't be"))
    }

    /// All pages of a table; `None` for those that are damaged.
    pub(super) fn read_table(
        file: &SegmentFile,
        header: &Header,
        geometry: Geometry,
    ) -> Result<Vec<Option<TablePage>>> {
        let mut pages: Vec<_> = file.table(header, geometry)?.into_iter().map(Result::ok).collect();
        for _ in 1..LOOKS_AT_PAGES {
            if pages.iter().all(Option::is_some) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            for (page, again) in pages.iter_mut().zip(file.table(header, geometry)?) {
                *page = page.take().or(again.ok());
            }
        }
        Ok(pages)
    }

    /// What was known of a place of an earlier generation is known no more, whatever a refresh has come to.
    pub(super) fn forget_if_old(&self, spot: Spot, generation: u64) {
        let mut state = self.state.lock();
        if state.catalogue.view(spot.segment).is_some_and(|view| view.header.generation == generation) {
            state.catalogue.hide(spot);
        }
    }

    /// A block has failed verification twice at the same generation: nobody finds it here any more, and, if the proof
    /// counts, in any other process.
    pub(super) fn bury(&self, spot: Spot, generation: u64, for_all: bool) {
        let own = {
            let mut state = self.state.lock();
            if state.catalogue.view(spot.segment).is_none_or(|view| view.header.generation != generation) {
                return;
            }
            state.catalogue.hide(spot);
            let owned = state.stations.iter().flat_map(|station| [&station.active, &station.spare]).flatten();
            owned.into_iter().find(|own| own.id() == spot.segment).cloned()
        };
        if !for_all {
            return;
        }
        self.failed_work.warn(
            module_path!(),
            format_args!("a block failed verification and is dead: slot {} of {:08x}.seg", spot.slot, spot.segment),
        );
        match own {
            Some(own) => own.bury(spot.slot, Box::new(|_| ())),
            None => {
                // Where somebody else owns the segment, each process finds out for itself.
                if let Ok(Some(claim)) = self.claim(spot.segment) {
                    let _ = self.bury_in_table(&claim, spot, generation);
                }
            }
        }
        self.hints.note(spot.segment);
    }

    fn bury_in_table(&self, claim: &Claim, spot: Spot, generation: u64) -> Result<()> {
        use super::format::{Entry, SlotState};
        let header = claim.file.header(self.superblock().pool)?;
        let geometry = self.geometry_of(&header)?;
        if header.generation != generation {
            return Ok(());
        }
        let (number, index) = geometry.entry_of(spot.slot);
        let mut page = claim.file.table_page(&header, geometry, number)?;
        if let Some(entry) = &mut page.entries[index] {
            *entry = Entry { state: SlotState::Dead, ..*entry };
            page.sequence += 1;
            claim
                .file
                .write_table_page(geometry, &page, Through::Device)
                .map_err(|e| Error::from_io("writing a segment's table", e.into()))?;
        }
        Ok(())
    }

    /// Writing a segment's table has failed: it is no place for more, as far as this process is concerned.
    pub(super) fn note_failing(&self, id: u32) {
        if let Some(segment) = self.state.lock().catalogue.segments.get_mut(&id) {
            segment.failing = true;
        }
    }

    /// Calls `found` with each block of a namespace, until it returns false.
    pub(super) fn scan(
        &self,
        namespace: NamespaceId,
        found: &mut dyn FnMut(BlockKey, crate::store::Location) -> bool,
    ) -> Result<()> {
        use super::format::SlotState;
        let mut seen = crate::index::Set::default();
        for id in self.site.segments()? {
            let Ok(file) = self.file_of(id) else { continue };
            let Ok(header) = file.header(self.superblock().pool) else { continue };
            if self.state.lock().catalogue.namespace_of(&header) != Some(namespace) {
                continue;
            }
            let geometry = self.geometry_of(&header)?;
            for page in Self::read_table(&file, &header, geometry)?.iter().flatten() {
                for (slot, entry) in geometry.slots_of(page.number as usize).zip(&page.entries) {
                    let Some(entry) = entry.filter(|entry| entry.state == SlotState::Block) else { continue };
                    let key = entry.name.key().or_else(|| Self::long_key(&file, &header, geometry, slot));
                    let spot = Spot { segment: id, slot };
                    if key.is_some_and(|key| seen.insert(key) && !found(key, spot.into())) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// The key of a block whose entry has no room for it: from its trailer.
    fn long_key(file: &SegmentFile, header: &Header, geometry: Geometry, slot: u32) -> Option<BlockKey> {
        let mut page = [0; crate::buffer::PAGE];
        let at = geometry.slot_offset(slot) + geometry.slot_bytes - page.len() as u64;
        file.read(at, &mut page).ok()?;
        super::acquire::trailer_of(&page, header).map(|trailer| trailer.key)
    }

    /// A segment can't be used as it is. One that is just being made, or made anew, is looked at again when that is done.
    fn lose(&self, id: u32, error: &Error) {
        let mut state = self.state.lock();
        if state.catalogue.segments.get(&id).is_some_and(|s| s.busy.load(Ordering::Acquire)) {
            return;
        }
        // Errors of the system prove nothing.
        match error.kind() {
            ErrorKind::Missing => {
                state.catalogue.drop_view(id);
                state.catalogue.segments.remove(&id);
            }
            ErrorKind::Foreign | ErrorKind::IdentityMismatch | ErrorKind::UnsupportedVersion => {
                state.catalogue.drop_view(id);
            }
            _ => {}
        }
        if matches!(error.kind(), ErrorKind::IdentityMismatch | ErrorKind::UnsupportedVersion)
            && let Some(segment) = state.catalogue.segments.get_mut(&id)
            && !std::mem::replace(&mut segment.complained, true)
        {
            drop(state);
            log::warn!("segment {} of the pool in {} is left alone: {error}", id, self.site.path.display());
        }
    }

    /// Takes the lock of a segment, unless somebody has it.
    pub(super) fn claim(&self, id: u32) -> Result<Option<Claim>> {
        let file = self.file_of(id)?;
        let busy = {
            let mut state = self.state.lock();
            let segment: &mut Segment = state.catalogue.segments.entry(id).or_default();
            Arc::clone(&segment.busy)
        };
        let claim = Claim::try_take(&file, &busy).map_err(|e| Error::from_io("locking a segment", e.into()))?;
        let Some(claim) = claim else {
            // Through an old description, a segment that was made anew can't be locked.
            if file.is_gone() {
                self.forget_file(&file);
            }
            return Ok(None);
        };
        self.remember_lock(&claim.file.data);
        Ok(Some(claim))
    }

    /// A file that is not the segment's any more is opened again the next time.
    pub(super) fn forget_file(&self, file: &Arc<SegmentFile>) {
        let mut state = self.state.lock();
        if let Some(segment) = state.catalogue.segments.get_mut(&file.id)
            && segment.file.as_ref().is_some_and(|known| Arc::ptr_eq(known, file))
        {
            segment.file = None;
        }
    }

    pub(super) fn remember_lock(&self, file: &Arc<File>) {
        let mut locked = self.locked.lock();
        // Those that are open nowhere else are not locked any more.
        locked.retain(|known| Arc::strong_count(known) > 1);
        if !locked.iter().any(|known| Arc::ptr_eq(known, file)) {
            locked.push(Arc::clone(file));
        }
    }

    /// In a forked child: lets go of the locks that the child shares with its parent. Never waits.
    pub(super) fn abandon_in_child(&self) {
        if let Some(locked) = self.locked.try_lock() {
            locked.iter().for_each(|file| let_go_in_child(file));
        }
        if let Some(file) = self.site.in_use() {
            let_go_in_child(file);
        }
    }

    /// Calls whoever wants to know what was dropped from a namespace.
    pub(super) fn tell_dropped(&self, namespace: Option<NamespaceId>, keys: &[BlockKey]) {
        let listeners = {
            let state = self.state.lock();
            namespace.and_then(|id| state.stations.get(id)).map(|station| station.listeners.clone())
        };
        if !keys.is_empty() {
            listeners.unwrap_or_default().iter().for_each(|listener| listener(keys));
        }
    }

    /// A slot for a store into `namespace`, if there is one now.
    pub(super) fn take_slot(&self, namespace: NamespaceId) -> Option<SlotTicket> {
        let mut state = self.state.lock();
        let (slot, low) = state.stations.get_mut(namespace)?.take_slot();
        if low {
            state.alarm = true;
            self.wake.notify_all();
        }
        slot
    }

    /// A slot for a store, as soon as there is one; refused as `Capacity` when there will be none.
    pub(super) fn wait_for_slot(&self, namespace: NamespaceId, waiter: Waiter) {
        let mut state = self.state.lock();
        if state.stopped {
            drop(state);
            return (waiter.then)(Err(Error::new(ErrorKind::Shutdown, "the tier was shut down")));
        }
        state.stations[namespace].waiting.push_back(waiter);
        state.alarm = true;
        self.wake.notify_all();
    }

    /// Takes out the waiters whose operations are over.
    pub(super) fn prune_waiters(&self) {
        let over: Vec<_> = {
            let mut state = self.state.lock();
            let prune = |station: &mut Station| {
                let (open, over): (VecDeque<_>, VecDeque<_>) =
                    std::mem::take(&mut station.waiting).into_iter().partition(|waiter| waiter.watch.is_open());
                station.waiting = open;
                over
            };
            state.stations.iter_mut().flat_map(prune).collect()
        };
        for waiter in over {
            (waiter.then)(Err(Error::new(ErrorKind::Timeout, "the operation's time is over")));
        }
    }

    /// A block lies complete in its slot, and its entry in the table.
    ///
    /// # Errors
    /// `Reset` when the namespace was reset meanwhile, so that nobody finds it.
    pub(super) fn published(&self, namespace: NamespaceId, header: &Header, slot: u32, key: &BlockKey) -> Result<()> {
        let mut state = self.state.lock();
        let current = state.catalogue.namespaces.get(namespace).is_some_and(|n| n.epoch == header.epoch);
        if !current {
            return Err(Error::new(ErrorKind::Reset, "the namespace was reset while the block was stored"));
        }
        let place = Spot { segment: header.segment, slot };
        state.catalogue.add(place, &super::format::KeyName::of(key));
        Ok(())
    }
}

impl Station {
    /// A slot, and whether the keeper should get the next segment ready.
    pub(super) fn take_slot(&mut self) -> (Option<SlotTicket>, bool) {
        let mut is_wanted = !std::mem::replace(&mut self.has_stored, true);
        loop {
            if let Some(slot) = self.active.as_ref().and_then(OwnSegment::take_slot) {
                return (Some(slot), is_wanted);
            }
            self.active = self.spare.take();
            is_wanted = true;
            if self.active.is_none() {
                return (None, is_wanted);
            }
        }
    }

    /// Whether a segment is wanted: at once, or soon.
    pub(super) fn wants(&self) -> (bool, bool) {
        (!self.waiting.is_empty(), self.spare.is_none() && self.has_stored)
    }
}

/// Segments that are read at the same time, where many are.
const AT_ONCE: usize = 8;

/// Does something about each of the items, so many at a time.
pub(super) fn for_each<T: Sync>(items: &[T], at_once: usize, work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..items.len().min(at_once) {
            // Where there is no thread to be had, this one does more.
            let _ = std::thread::Builder::new().name("kvtier-read".into()).spawn_scoped(scope, work);
        }
        work();
    });
}

/// Name of the file with a namespace's record: the namespace's own name may be as long as a file's.
fn record_name(namespace: &str) -> String {
    let digest = Sha256::digest(namespace.as_bytes());
    let half: [u8; 16] = std::array::from_fn(|i| digest[i]);
    format!("{:032x}{}", u128::from_be_bytes(half), site::RECORD)
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} in {})", self.superblock().pool, self.site.path.display())
    }
}

/// The permission bits of a pool's files.
pub(super) fn mode_of(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}
