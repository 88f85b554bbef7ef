//! Which segments have changed lately: eight bytes for each, so that following many segments costs one small read.
//!
//! Only a hint. Who trusts it too much learns of a block later: everything is looked at now and then anyway.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::{pread, pwrite};

use super::site::{HINTS, now_ns};

/// More segments than these are not read at once.
const MOST_BYTES: usize = 8 << 20;

/// The file of hints, as it is open here.
#[derive(Debug)]
pub(super) struct Hints {
    file: Option<File>,
    next: AtomicU64,
}

impl Hints {
    /// Opens the hints, which are made if they are missing. Without any, changes are found more slowly.
    pub(super) fn open(dir: &OwnedFd, read_only: bool, mode: Mode) -> Self {
        let how = if read_only { OFlags::RDONLY } else { OFlags::RDWR | OFlags::CREATE };
        let file = openat(dir, HINTS, how | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode).ok().map(File::from);
        Self { file, next: AtomicU64::new(now_ns()) }
    }

    /// A segment has changed.
    pub(super) fn note(&self, segment: u32) {
        if let Some(file) = &self.file {
            let value = self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            // A hint that is lost costs time only.
            let _ = pwrite(file, &value, u64::from(segment) * 8);
        }
    }

    /// Segments that others, or this process, have noted since the last call, which left `seen`.
    pub(super) fn changed(&self, seen: &mut Vec<u64>) -> Vec<u32> {
        let Some(file) = &self.file else { return Vec::new() };
        let length = fstat(file).map_or(0, |stat| usize::try_from(stat.st_size).unwrap_or(0)).min(MOST_BYTES);
        let mut bytes = vec![0; length];
        let Ok(read) = pread(file, &mut bytes, 0) else { return Vec::new() };
        let (values, _) = bytes[..read].as_chunks::<8>();
        seen.resize(values.len().max(seen.len()), 0);
        let mut changed = Vec::new();
        for (segment, (value, known)) in values.iter().zip(seen.iter_mut()).enumerate() {
            let value = u64::from_le_bytes(*value);
            if value != *known {
                *known = value;
                changed.push(segment as u32);
            }
        }
        changed
    }
}
