//! Going over a whole pool from outside: what is in it, and whether everything in it agrees.

use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, statat};

use super::acquire::read_block;
use super::format::{Geometry, Header, KeyName, NamespaceRecord, SlotState, Superblock};
use super::segment::{self, Access, SegmentFile};
use super::site::{self, DIR};
use crate::buffer::ScratchPool;
use crate::error::{Error, ErrorKind, Result};

/// What is in a pool.
#[derive(Debug)]
pub struct Census {
    /// What holds for all of it.
    pub superblock: Superblock,
    /// Bytes that its files take on the device.
    pub used_bytes: u64,
    /// The namespaces that were ever opened in it, by name.
    pub namespaces: Vec<NamespaceRecord>,
    /// Its segments, by number.
    pub segments: Vec<SegmentCensus>,
}

/// What is in a segment.
#[derive(Debug)]
pub struct SegmentCensus {
    /// Its number.
    pub id: u32,
    /// Whether some process is its owner now.
    pub owned: bool,
    /// When it was last used, in seconds since 1970.
    pub used_unix_s: u64,
    /// Its header, or why it has none.
    pub header: Result<Header>,
    /// Slots with a block, dead ones, and free ones.
    pub blocks: u32,
    /// See `blocks`.
    pub dead: u32,
    /// See `blocks`.
    pub free: u32,
    /// Pages of its table that can't be read.
    pub damaged_pages: u32,
    /// Slots whose entry says what their block doesn't; empty unless blocks were looked at.
    pub wrong: Vec<(u32, Error)>,
}

/// Goes over the pool below the directory at `root`, as it is; with `blocks`, reads each of them and compares it with its
/// entry. While others use the pool, what changes meanwhile may seem wrong.
///
/// # Errors
/// `Config` when there is no pool; `UnsupportedVersion` when it is a newer kvtier's; the system's.
pub fn check(root: &Path, blocks: bool) -> Result<Census> {
    let failed = |what: &str, errno: rustix::io::Errno| Error::from_io(what, errno.into()).with("root", root.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(root.join(DIR), flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(rustix::io::Errno::NOENT) => {
            return Err(Error::new(ErrorKind::Config, "there is no pool below the root").with("root", root.display()));
        }
        Err(errno) => return Err(failed("opening the pool's directory", errno)),
    };
    let superblock = site::read_superblock(&dir)?.ok_or_else(|| {
        Error::new(ErrorKind::Config, "the pool has no superblock; it was not finished").with("root", root.display())
    })?;
    let mut census = Census { superblock, used_bytes: 0, namespaces: Vec::new(), segments: Vec::new() };
    let mut names = site::names_in(&dir).map_err(|e| failed("listing the pool", e))?;
    names.sort_unstable();
    for name in names {
        let Ok(stat) = statat(&dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        census.used_bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        if name.ends_with(site::RECORD) {
            let page = openat(&dir, name.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|file| site::read_page(&file));
            if let Some(record) = page.ok().and_then(|page| NamespaceRecord::decode(&page).ok()) {
                census.namespaces.push(record);
            }
        }
        if let Some(id) = segment::id_of(&name) {
            let access = Access { direct: false, read_only: true, mode: Mode::empty() };
            match SegmentFile::open(&dir, id, access) {
                Ok(file) => census.segments.push(SegmentCensus::of(&file, &superblock, blocks)),
                Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(failed("opening a segment", errno)),
            }
        }
    }
    census.namespaces.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(census)
}

impl Census {
    /// Blocks that can be found, of all namespaces.
    pub fn blocks(&self) -> u64 {
        self.live().map(|segment| u64::from(segment.blocks)).sum()
    }

    /// Segments whose blocks count: those of their namespace's epoch.
    pub fn live(&self) -> impl Iterator<Item = &SegmentCensus> {
        self.segments.iter().filter(|segment| segment.header.as_ref().is_ok_and(|header| self.is_current(header)))
    }

    /// Whether blocks of a segment with this header count.
    pub fn is_current(&self, header: &Header) -> bool {
        self.namespaces.iter().any(|known| {
            (&known.name, known.identity, known.epoch) == (&header.namespace, header.identity, header.epoch)
        })
    }
}

impl SegmentCensus {
    fn of(file: &SegmentFile, superblock: &Superblock, blocks: bool) -> Self {
        let mut census = Self {
            id: file.id,
            owned: is_locked(file),
            used_unix_s: file.used(),
            header: file.header(superblock.pool),
            blocks: 0,
            dead: 0,
            free: 0,
            damaged_pages: 0,
            wrong: Vec::new(),
        };
        if let Err(error) = census.count(file, superblock, blocks) {
            census.header = Err(error);
        }
        census
    }

    fn count(&mut self, file: &SegmentFile, superblock: &Superblock, blocks: bool) -> Result<()> {
        let Ok(header) = &self.header else { return Ok(()) };
        let geometry = Geometry::stated(header, superblock.segment_bytes)
            .ok_or_else(|| Error::new(ErrorKind::Foreign, "the segment's header states slots that can't be"))?;
        let header = header.clone();
        for (number, page) in file.table(&header, geometry)?.into_iter().enumerate() {
            let Ok(page) = page else {
                self.damaged_pages += 1;
                continue;
            };
            for (slot, entry) in geometry.slots_of(number).zip(&page.entries) {
                match entry {
                    None => self.free += 1,
                    Some(entry) if entry.state == SlotState::Dead => self.dead += 1,
                    Some(entry) => {
                        self.blocks += 1;
                        if blocks && let Err(error) = verify(file, &header, geometry, slot, &entry.name) {
                            self.wrong.push((slot, error));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a slot's block is the one that its entry says.
fn verify(file: &SegmentFile, header: &Header, geometry: Geometry, slot: u32, name: &KeyName) -> Result<()> {
    let (trailer, _block) =
        read_block(file, header, geometry, slot, &ScratchPool::new(geometry.slot_bytes as usize, 0))?;
    if KeyName::of(&trailer.key) != *name {
        return Err(Error::new(ErrorKind::WrongKey, format!("the slot's block is that of key {}", trailer.key)));
    }
    Ok(())
}

/// Whether somebody owns the segment. Asking takes the lock for a moment, which at worst makes somebody look elsewhere.
fn is_locked(file: &SegmentFile) -> bool {
    match flock(&file.data, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            file.unlock();
            false
        }
        Err(_) => true,
    }
}
