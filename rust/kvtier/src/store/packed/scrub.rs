//! After a boot: what was stored before it is read once and compared with its checksums, since power may have failed.
//!
//! A table or a trailer may have reached the device where a payload has not. Tiers that compare checksums find out at each
//! load, so this is for those that don't: until all is checked they do, too. No process can say that the host will stay up, so
//! none says when it closes a pool that all is well; the file `checked` says for which boot that was found.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, openat};

use super::acquire::read_block;
use super::catalogue::Spot;
use super::format::{Entry, Geometry, Header, KeyName, SlotState};
use super::pool::Pool;
use super::segment::SegmentFile;
use super::site::{CHECKED, Site};
use crate::buffer::ScratchPool;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Verify;
use crate::sync::Mutex;

/// Bytes that are read in a second, at most.
const RATE: u64 = 64 << 20;
/// From one try to the next, where a segment can't be checked now, or somebody else is at it.
const AGAIN: Duration = Duration::from_secs(1);

/// What a pool knows of its checking.
#[derive(Debug)]
pub(super) struct Scrub {
    /// What the file says when all was checked in this boot; `None` where no boot can be told from another.
    mark: Option<String>,
    unchecked: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Scrub {
    /// Looks whether the pool has anything that was not checked in this boot.
    pub(super) fn look(site: &Site, read_only: bool, mode: Mode) -> Self {
        let mark = mark_of(site);
        let said = openat(&site.dir, CHECKED, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
        let mut checked = mark.is_some() && said.is_ok_and(|file| read(File::from(file)) == mark);
        if !checked && site.segments().is_ok_and(|there| there.is_empty()) {
            checked = true;
            if !read_only && let (Some(mark), Ok(file)) = (&mark, open(site, mode)) {
                write(&file, mark);
            }
        }
        Self { mark, unchecked: AtomicBool::new(!checked), thread: Mutex::default() }
    }

    /// How a load is verified whose tier wants it like this.
    pub(super) fn verify(&self, wanted: Verify) -> Verify {
        if self.unchecked.load(Ordering::Relaxed) { Verify::Always } else { wanted }
    }

    /// Starts checking, if there is a need and nobody has started it here.
    pub(super) fn start(pool: &Arc<Pool>) -> Result<()> {
        let scrub = &pool.scrub;
        let mut thread = scrub.thread.lock();
        if thread.is_some() || pool.access.read_only || !scrub.unchecked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(mark) = scrub.mark.clone() else { return Ok(()) };
        let pool = Arc::clone(pool);
        let started = std::thread::Builder::new().name("kvtier-scrub".into()).spawn(move || pool.scrub(&mark));
        *thread = Some(started.map_err(|e| Error::from_io("starting the thread that checks the pool", e))?);
        Ok(())
    }

    /// Waits for the thread, which has seen that the pool is closed.
    pub(super) fn stop(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic there would have been a defect, and is over now.
            let _ = thread.join();
        }
    }
}

/// What is still to do about a segment.
enum Left {
    /// To read it.
    All,
    /// To see that these slots of a generation are dead: somebody else has the segment.
    Bad(u64, Vec<u32>),
}

impl Pool {
    fn scrub(&self, mark: &str) {
        if let Err(error) = self.try_scrub(mark) {
            let place = self.site.path.display();
            log::warn!(
                "blocks of before this boot can't be checked in {place}, so that checksums are compared: {error}"
            );
        }
    }

    fn try_scrub(&self, mark: &str) -> Result<()> {
        let failed = |e: rustix::io::Errno| Error::from_io("opening the pool's mark of checking", e.into());
        let file = Arc::new(open(&self.site, self.access.mode).map_err(failed)?);
        // One process does it for all.
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if !self.pause(Instant::now() + AGAIN) {
                return Ok(());
            }
        }
        self.remember_lock(&file);
        let done = self.try_scrub_alone(&file, mark);
        let _ = flock(&file, FlockOperation::Unlock);
        done
    }

    fn try_scrub_alone(&self, file: &File, mark: &str) -> Result<()> {
        if read(file).as_deref() != Some(mark) {
            let began = Instant::now();
            let mut left: BTreeMap<_, _> = self.site.segments()?.into_iter().map(|id| (id, Left::All)).collect();
            let all = left.len();
            let mut pace = Pace::new();
            while !left.is_empty() {
                let ids: Vec<_> = left.keys().copied().collect();
                for id in ids {
                    let Some(what) = left.remove(&id) else { continue };
                    match self.scrub_segment(id, &what, &mut pace) {
                        Ok(None) => {}
                        Ok(Some(more)) => drop(left.insert(id, more)),
                        Err(Stopped) => return Ok(()),
                    }
                }
                if !left.is_empty() && !self.pause(Instant::now() + AGAIN) {
                    return Ok(());
                }
            }
            write(file, mark);
            let (root, took) = (self.site.path.display(), began.elapsed().as_secs());
            log::info!("{all} segments of before this boot were checked in {root}, in {took} s");
        }
        self.scrub.unchecked.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Does what is left about a segment; returns what is left then.
    fn scrub_segment(&self, id: u32, left: &Left, pace: &mut Pace) -> Result<Option<Left>, Stopped> {
        let (generation, bad) = match left {
            Left::Bad(generation, bad) => (*generation, bad.clone()),
            Left::All => match self.bad_slots(id, pace) {
                Ok(found) => found,
                Err(Halt::Nothing) => return Ok(None),
                Err(Halt::Later) => return Ok(Some(Left::All)),
                Err(Halt::Stopped) => return Err(Stopped),
            },
        };
        if self.generation_of(id).is_some_and(|now| now != generation) {
            // Begun anew in this boot.
            return Ok(None);
        }
        for slot in &bad {
            self.bury(Spot { segment: id, slot: *slot }, generation, true);
        }
        let alive: Vec<_> = bad.into_iter().filter(|slot| !self.is_dead(id, generation, *slot)).collect();
        Ok((!alive.is_empty()).then_some(Left::Bad(generation, alive)))
    }

    /// The generation of a segment, and its slots whose blocks are not what their entries say.
    fn bad_slots(&self, id: u32, pace: &mut Pace) -> Result<(u64, Vec<u32>), Halt> {
        let file = self.file_of(id)?;
        let header = file.header(self.superblock().pool)?;
        let geometry = self.geometry_of(&header)?;
        let pages = Self::read_table(&file, &header, geometry)?;
        // The blocks of a page that is rebuilt are looked at when that is done.
        let pages: Vec<_> = pages.into_iter().collect::<Option<_>>().ok_or(Halt::Later)?;
        let mut bad = Vec::new();
        for page in pages {
            for (slot, entry) in geometry.slots_of(page.number as usize).zip(&page.entries) {
                let Some(entry) = entry.filter(|entry| entry.state == SlotState::Block) else { continue };
                if !is_good(&file, &header, geometry, slot, &entry)? {
                    bad.push(slot);
                }
                if !self.pause(pace.after(geometry.slot_bytes)) {
                    return Err(Halt::Stopped);
                }
            }
        }
        Ok((header.generation, bad))
    }

    /// Whether nobody finds a slot's block any more.
    fn is_dead(&self, id: u32, generation: u64, slot: u32) -> bool {
        let entry = || -> Result<Option<Entry>> {
            let file = self.file_of(id)?;
            let header = file.header(self.superblock().pool)?;
            let (number, index) = self.geometry_of(&header)?.entry_of(slot);
            let page = file.table_page(&header, self.geometry_of(&header)?, number)?;
            Ok(if header.generation == generation { page.entries[index] } else { None })
        };
        entry().is_ok_and(|entry| entry.is_none_or(|entry| entry.state != SlotState::Block))
    }

    /// Waits; false when the pool is closed.
    fn pause(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.stopped && !self.wake.wait_until(&mut state, until) {}
        !state.stopped
    }
}

/// Whether the block that an entry names lies there whole; read twice before it is called bad.
fn is_good(file: &SegmentFile, header: &Header, geometry: Geometry, slot: u32, entry: &Entry) -> Result<bool> {
    let scratch = ScratchPool::new(geometry.slot_bytes as usize, 0);
    for _ in 0..2 {
        match read_block(file, header, geometry, slot, &scratch) {
            Ok((trailer, _)) if KeyName::of(&trailer.key) == entry.name => return Ok(true),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(false)
}

/// The pool is closed.
struct Stopped;

/// Why a segment's blocks can't be told good from bad.
enum Halt {
    /// The pool is closed.
    Stopped,
    /// Not now.
    Later,
    /// There are none that could be found.
    Nothing,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::Io { Self::Later } else { Self::Nothing }
    }
}

/// Keeps reading below [`RATE`].
struct Pace {
    next: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { next: Instant::now() }
    }

    /// When to go on, so many bytes later.
    fn after(&mut self, bytes: u64) -> Instant {
        self.next = self.next.max(Instant::now()) + Duration::from_nanos(bytes * 1_000_000_000 / RATE);
        self.next
    }
}

/// This boot of this host, and this directory: a copy is to be checked in its turn.
fn mark_of(site: &Site) -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let inode = fstat(&site.dir).ok()?.st_ino;
    Some(format!("{} {inode}\n", boot.trim()))
}

fn open(site: &Site, mode: Mode) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(&site.dir, CHECKED, flags, mode).map(File::from)
}

fn read(mut file: impl Read) -> Option<String> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some(text)
}

/// What can't be written, or is torn, is another one's mark: all is checked again.
fn write(file: &File, mark: &str) {
    let _ = file.set_len(0).and_then(|()| file.write_all_at(mark.as_bytes(), 0));
}
