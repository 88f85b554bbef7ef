//! Listing what is there.

use std::os::fd::OwnedFd;

use rustix::fs::{Dir, DirEntry, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::Files;
use crate::error::{Error, Result};
use crate::layout::BlockKey;
use crate::store::Location;

impl Files {
    /// Calls `found` for every file whose name is that of a block. Lengths are not looked at: that costs a system call
    /// per block, and a load finds out anyway.
    pub(super) fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        self.list(found)
            .map_err(|e| Error::from_io("listing the blocks", e.into()).with("path", self.root.path().display()))
    }

    fn list(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> rustix::io::Result<()> {
        let Some(blocks) = open_listing(&self.root, &self.blocks_dir)? else { return Ok(()) };
        for outer in entries(&blocks)? {
            let outer = outer?;
            let Some(outer) = name_of(&outer).filter(|name| name.len() == 3 && !name.starts_with('.')) else {
                continue;
            };
            let Some(outer_dir) = open_listing(&blocks, outer)? else { continue };
            for inner in entries(&outer_dir)? {
                let inner = inner?;
                let Some(inner) = name_of(&inner).filter(|name| !name.starts_with('.')) else { continue };
                let Some(inner_dir) = open_listing(&outer_dir, inner)? else { continue };
                for file in entries(&inner_dir)? {
                    let file = file?;
                    if !matches!(file.file_type(), FileType::RegularFile | FileType::Unknown) {
                        continue;
                    }
                    // The only name that is taken apart is that of a block; whose block it is stands in its trailer.
                    let key = name_of(&file).and_then(|name| BlockKey::from_path(&[outer, inner, name].join("/")));
                    if key.is_some_and(|key| !found(key, Location::default())) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// A directory to be listed; `None` for what is no directory, or was one until just now.
pub(super) fn open_listing(at: impl std::os::fd::AsFd, name: &str) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(at, name, flags, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(in crate::store) fn entries(dir: &OwnedFd) -> rustix::io::Result<Dir> {
    Dir::new(dir.try_clone().map_err(|_| Errno::MFILE)?)
}

pub(in crate::store) fn name_of(entry: &DirEntry) -> Option<&str> {
    entry.file_name().to_str().ok()
}
