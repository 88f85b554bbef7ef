//! What kind of file system a directory lies on, and what may be expected of it.

use std::fmt;
use std::os::fd::AsFd;

use rustix::fs::fstatfs;

use crate::error::{Error, Result};

/// A kind of file system, found by the magic number that `statfs` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    magic: u32,
    name: &'static str,
    class: Class,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// On a local device, and trusted: a read that was started ends.
    Local,
    /// In memory.
    Memory,
    /// Stacked on another one, of which nothing is known.
    Overlay,
    /// Served by another machine or another process, either of which may stop to answer.
    Remote,
    /// Anything else.
    Unknown,
}

/// Magic numbers as in linux/magic.h and in the sources of those that live outside of the kernel.
const KNOWN: &[FileSystem] = &[
    known(0xEF53, "ext4", Class::Local),
    known(0x5846_5342, "xfs", Class::Local),
    known(0x9123_683E, "btrfs", Class::Local),
    known(0x0102_1994, "tmpfs", Class::Memory),
    known(0x794C_7630, "overlay", Class::Overlay),
    known(0xF15F, "ecryptfs", Class::Overlay),
    known(0x6969, "nfs", Class::Remote),
    known(0xFF53_4D42, "cifs", Class::Remote),
    known(0xFE53_4D42, "smb2", Class::Remote),
    known(0x6573_5546, "fuse", Class::Remote),
    known(0x0102_1997, "9p", Class::Remote),
    known(0x00C3_6400, "ceph", Class::Remote),
    known(0x0BD0_0BD0, "lustre", Class::Remote),
    known(0x4750_4653, "gpfs", Class::Remote),
    known(0x1983_0326, "beegfs", Class::Remote),
    known(0x5346_414F, "afs", Class::Remote),
    known(0x0116_1970, "gfs2", Class::Remote),
    known(0x7461_636F, "ocfs2", Class::Remote),
    known(0xF2F5_2010, "f2fs", Class::Unknown),
    known(0x2FC1_2FC1, "zfs", Class::Unknown),
    known(0xCA45_1A4E, "bcachefs", Class::Unknown),
];

const fn known(magic: u32, name: &'static str, class: Class) -> FileSystem {
    FileSystem { magic, name, class }
}

impl FileSystem {
    /// The file system of an open file or directory.
    pub fn of(file: impl AsFd) -> Result<Self> {
        let stat = fstatfs(file).map_err(|e| Error::from_io("asking for the kind of file system", e.into()))?;
        #[allow(
            clippy::cast_sign_loss,
            reason = "magic numbers have 32 bits; the field's type differs by architecture"
        )]
        Ok(Self::of_magic(stat.f_type as u32))
    }

    fn of_magic(magic: u32) -> Self {
        KNOWN.iter().copied().find(|k| k.magic == magic).unwrap_or(known(magic, "unknown", Class::Unknown))
    }

    /// Its usual name; `"unknown"` for one that kvtier has not heard of.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether reads may go straight into the engine's rows: a read that has started is sure to end, so that its row
    /// can wait for it.
    pub fn reads_surely_end(self) -> bool {
        matches!(self.class, Class::Local | Class::Memory)
    }

    /// Whether direct IO can be worth trying.
    pub fn may_bypass_cache(self) -> bool {
        matches!(self.class, Class::Local | Class::Unknown)
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            "unknown" => write!(f, "unknown ({:#x})", self.magic),
            name => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn magic_numbers_are_told_apart() {
        for (i, a) in KNOWN.iter().enumerate() {
            assert_eq!(FileSystem::of_magic(a.magic), *a, "{a} has the number of another one");
            assert!(KNOWN[i + 1..].iter().all(|b| b.name != a.name), "{a} is listed twice");
        }
        let unknown = FileSystem::of_magic(0x1234);
        assert_eq!(unknown.to_string(), "unknown (0x1234)");
        assert!(!unknown.reads_surely_end());
    }

    #[test]
    fn only_the_allow_list_reads_into_rows() {
        let trusted: Vec<_> = KNOWN.iter().filter(|k| k.reads_surely_end()).map(|k| k.name).collect();
        assert_eq!(trusted, ["ext4", "xfs", "btrfs", "tmpfs"]);
    }

    #[test]
    fn proc_is_no_place_for_blocks() {
        let found = FileSystem::of(File::open("/proc").unwrap()).unwrap();
        assert_eq!((found.magic, found.class), (0x9FA0, Class::Unknown));
    }
}
