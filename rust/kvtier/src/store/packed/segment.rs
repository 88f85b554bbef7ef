//! One segment's file: opening, locking, and what is read and written besides blocks.
//!
//! The lock that makes a process a segment's owner is on the very open file description that everything is written
//! through. A killed process's writes may land after its death, and only that description outlives them.
//!
//! Blocks go past the page cache where that works. A table's pages go through it only where blocks are written by a ring:
//! on ext4 such a write has the file to itself, so it waits for all blocks that threads are writing beside it, and they for
//! it; a ring's thread holds nothing while it waits for the device, and would wait twice for a block whose entry went there,
//! too. Whichever way a page was written, all ways of reading agree.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync, flock, fstat,
    ftruncate, openat,
};
use rustix::io::{Errno, pread, pwrite};

use super::format::{Geometry, Header, Page, PoolId, TablePage};
use crate::buffer::{PAGE, ScratchPool};
use crate::error::{Error, ErrorKind, Result};

/// A segment's file, as it is open here.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) id: u32,
    /// What nearly all is read and written through, and what carries the lock.
    pub(super) data: Arc<File>,
    /// Through the page cache, which knows what is written past it: tables, and the header where it is looked at again and
    /// again.
    cached: File,
    /// Memory for pages of the header and the table: direct IO wants it aligned.
    pages: Arc<ScratchPool>,
}

/// Which way a page of a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Through {
    /// Past the page cache.
    Device,
    Cache,
}

/// Pages that wait for reuse.
const KEPT_PAGES: usize = 2;

/// Name of a segment's file.
pub(super) fn name_of(id: u32) -> String {
    format!("{id:08x}.seg")
}

/// The segment whose file has this name.
pub(super) fn id_of(name: &str) -> Option<u32> {
    let id = u32::from_str_radix(name.strip_suffix(".seg")?, 16).ok()?;
    (name_of(id) == name).then_some(id)
}

/// How segments are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) direct: bool,
    pub(super) read_only: bool,
    pub(super) mode: Mode,
}

impl SegmentFile {
    /// Opens a segment that is there.
    ///
    /// # Errors
    /// ENOENT when it isn't.
    pub(super) fn open(dir: &OwnedFd, id: u32, access: Access) -> rustix::io::Result<Self> {
        Self::open_with(dir, id, access, OFlags::empty())
    }

    /// Makes a segment that is not there.
    ///
    /// # Errors
    /// EEXIST when somebody was quicker.
    pub(super) fn create(dir: &OwnedFd, id: u32, access: Access) -> rustix::io::Result<Self> {
        Self::open_with(dir, id, access, OFlags::CREATE | OFlags::EXCL)
    }

    fn open_with(dir: &OwnedFd, id: u32, access: Access, extra: OFlags) -> rustix::io::Result<Self> {
        let how = if access.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let name = name_of(id);
        // Looking at a segment is not using it. Only its file's owner may read without being noted.
        let open =
            |direct, extra| match openat(dir, name.as_str(), flags | direct | extra | OFlags::NOATIME, access.mode) {
                Err(Errno::PERM) => openat(dir, name.as_str(), flags | direct | extra, access.mode),
                opened => opened,
            };
        let direct = if access.direct { OFlags::DIRECT } else { OFlags::empty() };
        let data = match open(direct, extra) {
            // The file was made all the same.
            Err(Errno::INVAL) if access.direct => open(OFlags::empty(), extra - OFlags::EXCL)?,
            opened => opened?,
        };
        let cached = open(OFlags::empty(), OFlags::empty())?;
        let (a, b) = (fstat(&data)?, fstat(&cached)?);
        if (a.st_dev, a.st_ino) != (b.st_dev, b.st_ino) {
            // Removed and made anew between the two: as good as not there.
            return Err(Errno::NOENT);
        }
        let pages = ScratchPool::new(PAGE, KEPT_PAGES);
        Ok(Self { id, data: Arc::new(data.into()), cached: cached.into(), pages })
    }

    /// Becomes the segment's owner; false when somebody else is, or when the file is not the segment's any more.
    pub(super) fn try_lock(&self) -> rustix::io::Result<bool> {
        match flock(&self.data, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        if fstat(&self.data)?.st_nlink > 0 {
            return Ok(true);
        }
        self.unlock();
        Ok(false)
    }

    /// Gives it up again.
    pub(super) fn unlock(&self) {
        // A lock that can't be given up ends with the description.
        let _ = flock(&self.data, FlockOperation::Unlock);
    }

    /// Whether it was removed.
    pub(super) fn is_gone(&self) -> bool {
        fstat(&self.data).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> rustix::io::Result<u64> {
        Ok(u64::try_from(fstat(&self.data)?.st_size).unwrap_or(0))
    }

    /// When anybody last said that they use it, in seconds since 1970.
    pub(super) fn used(&self) -> u64 {
        fstat(&self.data).map_or(0, |stat| u64::try_from(stat.st_atime).unwrap_or(0))
    }

    /// Says that it is in use, for all processes to see. Nothing else sets its access time.
    pub(super) fn note_use(&self) {
        use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // A hint; a read-only file has none.
        let _ = futimens(&self.data, &Timestamps { last_access: now, last_modification: omit });
    }

    /// Gives the file its full length with nothing in it, whatever was there.
    ///
    /// # Errors
    /// ENOSPC when there is no room; EOPNOTSUPP where the file system can't reserve any.
    pub(super) fn allocate(&self, bytes: u64) -> rustix::io::Result<()> {
        if self.len()? > 0 {
            ftruncate(&self.data, 0)?;
        }
        fallocate(&self.data, FallocateFlags::empty(), 0, bytes)
    }

    /// Gives the file's room back at once, also while others have it open.
    pub(super) fn punch(&self) {
        if let Ok(bytes) = self.len()
            && bytes > 0
        {
            let _ = fallocate(&self.data, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes);
        }
    }

    /// The header.
    ///
    /// # Errors
    /// `Foreign` when there is none, or a damaged one; `IdentityMismatch` when it is another pool's;
    /// `UnsupportedVersion` when it is a newer kvtier's; the system's.
    pub(super) fn header(&self, pool: PoolId) -> Result<Header> {
        let look = || {
            let mut page = [0; PAGE];
            self.read(0, &mut page).map_err(|e| self.failed("reading a segment's header", e))?;
            Header::decode(&page)
        };
        // Its owner may have been writing it just then.
        let header = look().or_else(|error| if error.kind() == ErrorKind::Foreign { look() } else { Err(error) })?;
        if (header.pool, header.segment) != (pool, self.id) {
            return Err(Error::new(
                ErrorKind::IdentityMismatch,
                "the segment is that of another place or another pool",
            ));
        }
        Ok(header)
    }

    /// The generation of a pool's segment, as the page cache has it; `None` when it can't be told.
    pub(super) fn generation(&self, pool: PoolId) -> Option<u64> {
        let mut page = [0; PAGE];
        read_all(&self.cached, 0, &mut page).ok()?;
        let header = Header::decode(&page).ok().filter(|header| (header.pool, header.segment) == (pool, self.id));
        header.map(|header| header.generation)
    }

    /// Writes the header, and waits until the device has it.
    pub(super) fn write_header(&self, header: &Header) -> Result<()> {
        let write = || {
            self.write(0, &header.encode())?;
            fdatasync(&self.data)
        };
        write().map_err(|e| self.failed("writing a segment's header", e))
    }

    /// The whole table of a segment with this header: each page, or why it can't be read.
    pub(super) fn table(&self, header: &Header, geometry: Geometry) -> Result<Vec<Result<TablePage>>> {
        let mut memory = ScratchPool::new(geometry.table_pages() * PAGE, 0).take()?;
        let bytes = &mut memory[..geometry.table_pages() * PAGE];
        read_all(&self.data, geometry.page_offset(0), bytes)
            .map_err(|e| self.failed("reading a segment's table", e))?;
        let (pages, _) = bytes.as_chunks::<PAGE>();
        let decode = |(number, page): (usize, &Page)| {
            TablePage::decode(page, header.pool, header.segment, number as u32, header.generation)
        };
        Ok(pages.iter().enumerate().map(decode).collect())
    }

    /// One page of the table.
    pub(super) fn table_page(&self, header: &Header, geometry: Geometry, number: usize) -> Result<TablePage> {
        let mut page = [0; PAGE];
        self.read(geometry.page_offset(number), &mut page).map_err(|e| self.failed("reading a segment's table", e))?;
        TablePage::decode(&page, header.pool, header.segment, number as u32, header.generation)
    }

    /// Writes one page of the table.
    pub(super) fn write_table_page(
        &self,
        geometry: Geometry,
        page: &TablePage,
        through: Through,
    ) -> rustix::io::Result<()> {
        let (at, bytes) = (geometry.page_offset(page.number as usize), page.encode());
        match through {
            Through::Device => self.write(at, &bytes),
            Through::Cache => write_all(&self.cached, at, &bytes),
        }
    }

    /// Waits until the device has what was written.
    pub(super) fn flush(&self) -> rustix::io::Result<()> {
        fdatasync(&self.data)
    }

    /// Reads a page; what lies beyond the end is zero.
    pub(super) fn read(&self, at: u64, into: &mut Page) -> rustix::io::Result<()> {
        let mut memory = self.pages.take().map_err(|_| Errno::NOMEM)?;
        read_all(&self.data, at, &mut memory[..PAGE])?;
        into.copy_from_slice(&memory[..PAGE]);
        Ok(())
    }

    /// Writes a page.
    pub(super) fn write(&self, at: u64, from: &Page) -> rustix::io::Result<()> {
        let mut memory = self.pages.take().map_err(|_| Errno::NOMEM)?;
        memory[..PAGE].copy_from_slice(from);
        write_all(&self.data, at, &memory[..PAGE])
    }

    fn failed(&self, what: &str, errno: Errno) -> Error {
        Error::from_io(what, errno.into()).with("segment", name_of(self.id))
    }
}

/// Fills aligned memory from a whole number of pages; what lies beyond the end is zero.
pub(super) fn read_all(file: &File, at: u64, into: &mut [u8]) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match pread(file, &mut into[done..], at + done as u64) {
            Ok(0) => {
                into[done..].fill(0);
                break;
            }
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) => without_direct_io(file)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes aligned memory to a whole number of pages.
pub(super) fn write_all(file: &File, at: u64, from: &[u8]) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < from.len() {
        match pwrite(file, &from[done..], at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::INVAL) => without_direct_io(file)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Goes on through the page cache, where the file system has refused direct IO in spite of what it says.
///
/// # Errors
/// EINVAL when that was not it.
fn without_direct_io(file: &File) -> rustix::io::Result<()> {
    let flags = fcntl_getfl(file)?;
    if flags.contains(OFlags::DIRECT) { fcntl_setfl(file, flags - OFlags::DIRECT) } else { Err(Errno::INVAL) }
}
