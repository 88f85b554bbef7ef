//! The pool's own thread: it gets segments for stores, follows what other processes store, and tells them what is in use.
//!
//! Only this thread makes, adopts and reclaims segments, so none of that happens twice at a time in a process, and no
//! thread that moves blocks waits for it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::fstatvfs;

use super::catalogue::NamespaceId;
use super::format::KeyName;
use super::pool::{Pool, State, Station};
use super::rebuild::Rebuild;
use super::site::{now_ns, now_s};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Probed;
use crate::sync::Mutex;

/// From one look at what others have stored to the next.
const FOLLOW: Duration = Duration::from_millis(40);
/// The same for whatever has time.
const TIDY: Duration = Duration::from_secs(1);
/// In so many rounds of tidying, each segment is looked at, noted or not.
const ROUNDS: u32 = 30;
/// For how long no segment can be had before stores are refused: what others hold now, they may let go of.
const STARVING: Duration = Duration::from_secs(1);
/// More open segments than these are closed again.
const MOST_FILES: usize = 256;

/// The thread.
#[derive(Debug)]
pub(super) struct Keeper {
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    /// Starts it.
    pub(super) fn start(pool: &Arc<Pool>) -> Result<Self> {
        let pool = Arc::clone(pool);
        let thread = std::thread::Builder::new().name("kvtier-pool".into()).spawn(move || keep(&pool));
        let thread = thread.map_err(|e| Error::from_io("starting the pool's thread", e))?;
        Ok(Self { thread: Mutex::new(Some(thread)) })
    }

    /// Ends it; waits for what it is at.
    pub(super) fn stop(&self, pool: &Pool) {
        {
            let mut state = pool.state.lock();
            state.stopped = true;
            pool.wake.notify_all();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic there would have been a defect, and is over now.
            let _ = thread.join();
        }
    }
}

fn keep(pool: &Arc<Pool>) {
    let (mut round, mut gone) = (0, Vec::new());
    // Whoever opens a namespace reads what is there.
    let (mut follow, mut tidy) = (Instant::now() + FOLLOW, Instant::now() + TIDY);
    loop {
        {
            let mut state = pool.state.lock();
            while !state.stopped && !state.alarm && !pool.wake.wait_until(&mut state, follow) {}
            if state.stopped {
                break;
            }
            state.alarm = false;
        }
        pool.supply();
        if pool.somebody_waits_for_tables() {
            Rebuild::start(pool);
            pool.answer_probes();
        }
        let now = Instant::now();
        if now >= follow {
            pool.follow();
            pool.follow_epochs();
            pool.answer_probes();
            follow = Instant::now() + FOLLOW;
        }
        if now >= tidy {
            round += 1;
            pool.tidy(round);
            gone = pool.tell_gone(gone);
            tidy = Instant::now() + TIDY;
        }
    }
    let waiting: Vec<_> = {
        let mut state = pool.state.lock();
        let drained = |station: &mut Station| std::mem::take(&mut station.waiting);
        state.stations.iter_mut().flat_map(drained).collect()
    };
    for waiter in waiting {
        (waiter.then)(Err(Error::new(ErrorKind::Shutdown, "the tier was shut down")));
    }
}

impl Pool {
    /// Gets segments for all who want one.
    fn supply(&self) {
        let wanted: Vec<_> = {
            let state = self.state.lock();
            state.stations.iter().map(Station::wants).enumerate().collect()
        };
        for (namespace, (now, soon)) in wanted {
            if now {
                self.serve(namespace);
            } else if soon && self.may_have_spare()
                // Nobody waits for it yet; those who will are told what is wrong.
                && let Ok(Some(spare)) = self.acquire(namespace)
            {
                let mut state = self.state.lock();
                let current = state.catalogue.namespaces[namespace].epoch == spare.header.epoch;
                if current {
                    state.stations[namespace].spare = Some(spare);
                }
            }
        }
    }

    /// Segments that are held ready are out of use for everybody else, so the smallest pools have none.
    fn may_have_spare(&self) -> bool {
        let state = self.state.lock();
        let ready = state.stations.iter().filter(|station| station.spare.is_some()).count();
        state.catalogue.segments.len() / 10 > ready
    }

    /// Lets others have the segments that were ready for stores which have not come.
    fn give_up_spares(&self) {
        let given_up: Vec<_> = {
            let mut state = self.state.lock();
            let idle = |station: &mut Station| {
                let is_idle = !std::mem::take(&mut station.has_stored);
                if is_idle { station.spare.take() } else { None }
            };
            state.stations.iter_mut().filter_map(idle).collect()
        };
        drop(given_up);
    }

    /// Gives slots to those who wait for one.
    fn serve(&self, namespace: NamespaceId) {
        loop {
            let (ready, left) = {
                let mut state = self.state.lock();
                let station = &mut state.stations[namespace];
                let mut ready = Vec::new();
                while !station.waiting.is_empty()
                    && let (Some(slot), _) = station.take_slot()
                    && let Some(waiter) = station.waiting.pop_front()
                {
                    ready.push((waiter, slot));
                }
                if !ready.is_empty() {
                    station.starving = None;
                }
                (ready, station.waiting.len())
            };
            for (waiter, slot) in ready {
                (waiter.then)(Ok(slot));
            }
            if left == 0 {
                return;
            }
            match self.acquire(namespace) {
                Ok(Some(own)) => {
                    let mut state = self.state.lock();
                    if state.catalogue.namespaces[namespace].epoch == own.header.epoch {
                        state.stations[namespace].active = Some(own);
                    }
                }
                Ok(None) => {
                    let none = "no segment of the pool can be had: all are being stored into or loaded from";
                    return self.refuse(namespace, || Error::new(ErrorKind::Capacity, none), STARVING);
                }
                Err(error) => {
                    let (kind, message) = (error.kind(), error.to_string());
                    return self.refuse(namespace, || Error::new(kind, message.clone()), Duration::ZERO);
                }
            }
        }
    }

    /// Refuses those who wait, if they have no chance since `patience`.
    fn refuse(&self, namespace: NamespaceId, why: impl Fn() -> Error, patience: Duration) {
        let refused = {
            let mut state = self.state.lock();
            let station = &mut state.stations[namespace];
            let since = *station.starving.get_or_insert_with(Instant::now);
            if since.elapsed() < patience {
                return;
            }
            station.starving = None;
            std::mem::take(&mut station.waiting)
        };
        for waiter in refused {
            (waiter.then)(Err(why()));
        }
    }

    fn somebody_waits_for_tables(&self) -> bool {
        self.state.lock().stations.iter().any(|station| !station.probes.is_empty())
    }

    /// Answers the probes that have waited for tables to be rebuilt.
    pub(super) fn answer_probes(&self) {
        let answered = {
            let mut state = self.state.lock();
            let State { catalogue, stations, .. } = &mut *state;
            let mut answered = Vec::new();
            for (namespace, station) in stations.iter_mut().enumerate() {
                if catalogue.namespaces[namespace].is_complete() {
                    for (keys, done) in station.probes.drain(..) {
                        let answer = |key| match catalogue.find(namespace, catalogue.name_of(key)) {
                            Some(spot) => Probed::Present(spot.into()),
                            None => Probed::Absent,
                        };
                        answered.push((keys.iter().map(answer).collect(), done));
                    }
                }
            }
            answered
        };
        for (answer, done) in answered {
            done.give(Ok(answer));
        }
    }

    /// What has to be done now and then.
    fn tidy(self: &Arc<Self>, round: u32) {
        self.note_uses();
        self.follow_uses();
        self.give_up_spares();
        self.close_files();
        match self.site.segments() {
            Ok(there) => {
                for id in &there {
                    if id % ROUNDS == round % ROUNDS || self.is_new(*id) {
                        self.refresh(*id);
                    }
                }
                self.forget_all_but(&there);
            }
            Err(error) => self.failed_work.warn(module_path!(), format_args!("the pool can't be listed: {error}")),
        }
        Rebuild::start(self);
        if !self.access.read_only {
            self.shrink();
        }
    }

    /// Tells of blocks that other processes have dropped. `before` are those that went before the last round: by now, those
    /// that were only moved are known where they are. Returns the ones for the next round.
    fn tell_gone(&self, before: Vec<(NamespaceId, KeyName)>) -> Vec<(NamespaceId, KeyName)> {
        let (mut dropped, next) = {
            let mut state = self.state.lock();
            let is_gone = |(namespace, key): &(NamespaceId, KeyName)| {
                state.catalogue.find(*namespace, state.catalogue.naming.name_of(key)).is_none()
            };
            let dropped: Vec<_> = before.into_iter().filter(is_gone).collect();
            (dropped, state.catalogue.take_gone())
        };
        dropped.sort_by_key(|(namespace, _)| *namespace);
        for of_one in dropped.chunk_by(|a, b| a.0 == b.0) {
            let keys: Vec<_> = of_one.iter().filter_map(|(_, key)| key.key()).collect();
            self.tell_dropped(of_one.first().map(|(namespace, _)| *namespace), &keys);
        }
        next
    }

    fn is_new(&self, id: u32) -> bool {
        !self.state.lock().catalogue.segments.contains_key(&id)
    }

    fn forget_all_but(&self, there: &[u32]) {
        let mut state = self.state.lock();
        let gone = |id: &&u32| !there.contains(id);
        let gone: Vec<_> = state.catalogue.segments.keys().filter(gone).copied().collect();
        for id in gone {
            let busy = state
                .catalogue
                .segments
                .get(&id)
                .is_some_and(|segment| segment.busy.load(std::sync::atomic::Ordering::Acquire));
            if !busy {
                state.catalogue.drop_view(id);
                state.catalogue.segments.remove(&id);
            }
        }
    }

    /// Tells the other processes which segments are in use here.
    fn note_uses(&self) {
        if self.access.read_only {
            return;
        }
        let mut used = Vec::new();
        for segment in self.state.lock().catalogue.segments.values_mut() {
            if let (Some(file), Some(view)) = (&segment.file, &mut segment.view)
                && view.used > view.noted
            {
                view.noted = view.used;
                used.push(Arc::clone(file));
            }
        }
        for file in used {
            file.note_use();
        }
    }

    /// Closes segments that were not used for longest, if many are open.
    fn close_files(&self) {
        let closed: Vec<_> = {
            let mut state = self.state.lock();
            let is_idle = |file: &Arc<_>| Arc::strong_count(file) == 1;
            let mut open: Vec<_> = (state.catalogue.segments.iter())
                .filter(|(_, segment)| segment.file.as_ref().is_some_and(is_idle))
                .map(|(id, segment)| (segment.view.as_ref().map_or(0, |view| view.used), *id))
                .collect();
            open.sort_unstable();
            let surplus = open.len().saturating_sub(MOST_FILES);
            let close = |(_, id): &(u64, u32)| state.catalogue.segments.get_mut(id)?.file.take();
            open[..surplus].iter().filter_map(close).collect()
        };
        drop(closed);
    }

    /// Bytes that are free on the file system, for this user.
    pub(super) fn free_bytes(&self) -> u64 {
        fstatvfs(self.dir()).map_or(u64::MAX, |space| space.f_bavail * space.f_frsize)
    }

    /// Gives room back: segments beyond a cap that was lowered, and what others need of the file system.
    fn shrink(&self) {
        let most = self.superblock().most_segments();
        let beyond: Vec<_> = {
            let state = self.state.lock();
            state.catalogue.segments.keys().filter(|id| **id >= most).copied().collect()
        };
        for id in beyond {
            if let Err(error) = self.discard(id) {
                self.failed_work.warn(module_path!(), format_args!("room can't be given back: {error}"));
            }
        }
        let floor = self.superblock().min_free_bytes;
        if floor > 0 && self.free_bytes() < floor {
            for id in self.by_rank() {
                match self.discard(id) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => {
                        self.failed_work.warn(module_path!(), format_args!("room can't be given back: {error}"));
                        break;
                    }
                }
            }
        }
    }

    /// Segments that could be reclaimed, those of least worth first.
    pub(super) fn by_rank(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        state.catalogue.end_pins(now_ns());
        let mut ranked: Vec<_> = (state.catalogue.segments.iter())
            .filter(|(_, segment)| !segment.busy.load(std::sync::atomic::Ordering::Acquire))
            .filter_map(|(id, segment)| {
                let view = segment.view.as_ref().filter(|view| !view.is_held())?;
                // Where all blocks are pinned, none of the room can be had; where most are, little.
                let (pinned, slots) = (view.pinned.len(), view.geometry.slots as usize);
                if pinned >= slots {
                    return None;
                }
                // Of an earlier epoch than its namespace: nobody will ever find anything in it.
                let worthless = view.namespace.is_none()
                    && state.catalogue.namespaces.iter().any(|n| n.name == view.header.namespace);
                let rank = if worthless { 0 } else { self.policy.rank(&view.candidate()) };
                Some((2 * pinned > slots, rank, view.header.born_unix_ns, *id))
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., id)| id).collect()
    }

    /// Learns which segments other processes have used.
    fn follow_uses(&self) {
        use rustix::fs::{AtFlags, statat};
        let known: Vec<_> = self.state.lock().catalogue.segments.keys().copied().collect();
        let now = now_s();
        for id in known {
            if let Ok(stat) = statat(self.dir(), super::segment::name_of(id), AtFlags::SYMLINK_NOFOLLOW) {
                let used = u64::try_from(stat.st_atime).unwrap_or(0).min(now);
                if let Some(view) = self.state.lock().catalogue.view_mut(id) {
                    view.used = view.used.max(used);
                }
            }
        }
    }
}
