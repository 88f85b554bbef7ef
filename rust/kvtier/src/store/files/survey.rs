//! What lies in a root, looked at without listing all of it and without changing anything: `kvtier doctor`.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, statat};

use super::config_json;
use super::heal::QUARANTINE;
use super::reset::TRASH;
use super::root::Root;
use super::scan::{entries, name_of, open_listing};
use super::temporary::{self, Unfinished};
use crate::error::{Error, Result};
use crate::identity::StoredConfig;
use crate::layout::BlockKey;

/// Leading directories of a namespace that are looked into, at most. Hashes are spread evenly, so a few of the 4096 tell
/// about all.
const SAMPLE: usize = 16;

/// The namespaces in a root.
#[derive(Debug)]
pub struct Survey {
    /// Those that are in use, or can be, by name.
    pub namespaces: Vec<FoundNamespace>,
    /// How many were reset and are not deleted yet.
    pub in_trash: usize,
}

/// A directory with a `config.json`.
#[derive(Debug)]
pub struct FoundNamespace {
    /// Its name.
    pub base_dir: String,
    /// What its `config.json` says, or why it can't be understood.
    pub config: Result<StoredConfig>,
    /// Its directories of blocks, by rank.
    pub ranks: Vec<FoundBlocks>,
}

/// A directory of blocks.
#[derive(Debug)]
pub struct FoundBlocks {
    /// Its name.
    pub blocks_dir: String,
    /// What is in it, or why it can't be listed.
    pub contents: Result<Contents>,
}

/// What is in a directory of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// How many blocks; an estimate unless `exact`.
    pub blocks: u64,
    /// The bytes of their files; always an estimate, since only some of them are measured.
    pub bytes: u64,
    /// Whether each block was counted.
    pub exact: bool,
    /// Files that are not complete.
    pub unfinished: Unfinished,
    /// Blocks that were proven bad and kept aside.
    pub quarantined: u64,
}

impl Root {
    /// Looks at all namespaces; begins no further sample when `patience` is over.
    ///
    /// # Errors
    /// When the root can't be listed.
    pub fn survey(&self, patience: Duration) -> Result<Survey> {
        let give_up = Instant::now() + patience;
        let names = self
            .names()
            .map_err(|e| Error::from_io("listing the root", e.into()).with("path", self.path().display()))?;
        let mut namespaces: Vec<_> = names.iter().filter_map(|name| self.namespace(name)).collect();
        for namespace in &mut namespaces {
            let mut ranks: Vec<_> = names.iter().filter_map(|n| Some((rank_of(n, &namespace.base_dir)?, n))).collect();
            ranks.sort_unstable();
            namespace.ranks = ranks.iter().filter_map(|(_, name)| self.blocks(name, give_up)).collect();
        }
        Ok(Survey { namespaces, in_trash: count(self, TRASH).unwrap_or(0) as usize })
    }

    fn names(&self) -> rustix::io::Result<Vec<String>> {
        let mut names = Vec::new();
        if let Some(listing) = open_listing(self, ".")? {
            for entry in entries(&listing)? {
                names.extend(name_of(&entry?).map(str::to_owned));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn namespace(&self, name: &str) -> Option<FoundNamespace> {
        let dir = self.open_dir(name).ok()?;
        let config = match config_json::read(&dir) {
            Ok(None) => return None,
            Ok(Some(text)) => StoredConfig::from_json(&text),
            Err(e) => Err(Error::from_io("reading config.json", e)),
        };
        Some(FoundNamespace { base_dir: name.to_owned(), config, ranks: Vec::new() })
    }

    fn blocks(&self, name: &str, give_up: Instant) -> Option<FoundBlocks> {
        let contents = match open_listing(self, name) {
            Ok(None) => return None,
            Ok(Some(dir)) => Contents::sample(&dir, give_up),
            Err(errno) => Err(errno),
        };
        let contents = contents.map_err(|e| Error::from_io("listing the blocks", e.into()).with("name", name));
        Some(FoundBlocks { blocks_dir: name.to_owned(), contents })
    }
}

impl Contents {
    fn sample(dir: &OwnedFd, give_up: Instant) -> rustix::io::Result<Self> {
        let mut outer_names = Vec::new();
        for entry in entries(dir)? {
            outer_names.extend(name_of(&entry?).filter(|name| is_outer(name)).map(str::to_owned));
        }
        let mut counted = Counted::default();
        let mut looked_into = 0;
        for outer in &outer_names {
            if looked_into == SAMPLE || (looked_into > 0 && Instant::now() >= give_up) {
                break;
            }
            counted.add(dir, outer)?;
            looked_into += 1;
        }
        let blocks = counted.blocks * outer_names.len() as u64 / (looked_into as u64).max(1);
        Ok(Self {
            blocks,
            bytes: blocks * counted.measured_bytes / counted.measured.max(1),
            exact: looked_into == outer_names.len(),
            unfinished: temporary::look(dir)?,
            quarantined: count(dir, QUARANTINE)?,
        })
    }
}

/// Blocks of the directories that were looked into.
#[derive(Default)]
struct Counted {
    blocks: u64,
    measured: u64,
    measured_bytes: u64,
}

impl Counted {
    fn add(&mut self, dir: &OwnedFd, outer: &str) -> rustix::io::Result<()> {
        let Some(outer_dir) = open_listing(dir, outer)? else { return Ok(()) };
        for inner in entries(&outer_dir)? {
            let inner = inner?;
            let Some(inner) = name_of(&inner).filter(|name| !name.starts_with('.')) else { continue };
            let Some(inner_dir) = open_listing(&outer_dir, inner)? else { continue };
            // One of each directory: the blocks of a namespace have one length, or else loads find out.
            let mut measure = true;
            for file in entries(&inner_dir)? {
                let file = file?;
                let Some(file) = name_of(&file) else { continue };
                if BlockKey::from_path(&[outer, inner, file].join("/")).is_none() {
                    continue;
                }
                self.blocks += 1;
                if std::mem::take(&mut measure)
                    && let Ok(stat) = statat(&inner_dir, file, AtFlags::SYMLINK_NOFOLLOW)
                {
                    self.measured += 1;
                    self.measured_bytes += u64::try_from(stat.st_size).unwrap_or(0);
                }
            }
        }
        Ok(())
    }
}

/// The rank whose blocks of the namespace `base_dir` are in the directory `name`.
fn rank_of(name: &str, base_dir: &str) -> Option<u32> {
    name.strip_prefix(base_dir)?.strip_prefix("_r")?.parse().ok()
}

/// Whether a directory of blocks has such a directory: three hex digits.
fn is_outer(name: &str) -> bool {
    name.len() == 3 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// How many entries the directory `name` has; none if it isn't there.
fn count(at: impl AsFd, name: &str) -> rustix::io::Result<u64> {
    let Some(listing) = open_listing(at, name)? else { return Ok(0) };
    let mut found = 0;
    for entry in entries(&listing)? {
        found += u64::from(!matches!(entry?.file_name().to_bytes(), b"." | b".."));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::identity::{Facts, Identity, Namespace, NamespaceKind};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn namespace(tp_size: u64) -> Namespace {
        let facts = Facts { tp_size, row_bytes: Some(4096), ..Facts::new("org/m", 16, "bfloat16") };
        Namespace::new(&Identity::new(facts).unwrap(), NamespaceKind::Kvtier).unwrap()
    }

    fn put(path: &Path, bytes: usize) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![0; bytes]).unwrap();
    }

    fn put_block(root: &Path, blocks_dir: &str, number: u64) {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        let key = BlockKey::from_parts(&hash, 0).unwrap();
        put(&root.join(blocks_dir).join(key.path().as_str()), 8192);
    }

    fn survey(root: &Path) -> Survey {
        Root::open(root).unwrap().survey(PATIENCE).unwrap()
    }

    #[test]
    fn each_namespace_is_found_with_its_ranks_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let [a, b] = [1, 2].map(namespace);
        for namespace in [&a, &b] {
            put(&root.join(namespace.base_dir()).join("config.json"), 0);
            fs::write(root.join(namespace.base_dir()).join("config.json"), namespace.config_text()).unwrap();
        }
        let rank = |r: u32| format!("{}_r{r}", a.base_dir());
        put_block(root, &rank(10), 1);
        put_block(root, &rank(2), 1);
        put_block(root, &rank(2), 2);
        put(&root.join(rank(2)).join(".quarantine/x"), 1);
        put(&root.join(rank(2)).join("abc/de_g0/no-block.txt"), 1);
        put(&root.join(".kvtier-trash/1/x"), 1);
        put(&root.join("somebody's/file"), 1);
        put(&root.join(format!("{}_rx/file", a.base_dir())), 1);

        let found = survey(root);
        assert_eq!((found.namespaces.len(), found.in_trash), (2, 1));
        let of_a = found.namespaces.iter().find(|n| n.base_dir == a.base_dir()).unwrap();
        assert_eq!(of_a.config.as_ref().unwrap().fields, *a.fields());
        let [two, ten] = &of_a.ranks[..] else { panic!("two ranks expected: {of_a:?}") };
        assert_eq!((two.blocks_dir.clone(), ten.blocks_dir.clone()), (rank(2), rank(10)));
        let contents = *two.contents.as_ref().unwrap();
        assert_eq!((contents.blocks, contents.bytes, contents.exact, contents.quarantined), (2, 2 * 8192, true, 1));
        let of_b = found.namespaces.iter().find(|n| n.base_dir == b.base_dir()).unwrap();
        assert!(of_b.ranks.is_empty());
    }

    #[test]
    fn many_blocks_are_estimated_from_a_few_directories() {
        const BLOCKS: u64 = 3000;
        let dir = tempfile::tempdir().unwrap();
        let a = namespace(1);
        put(&dir.path().join(a.base_dir()).join("config.json"), 0);
        // Few enough leading directories to be quick, more than are looked into.
        let blocks_dir = dir.path().join(a.blocks_dir());
        for number in 0..BLOCKS {
            let key = BlockKey::from_parts(&[(number % 64) as u8, 0x10, 1, (number / 64) as u8], 0).unwrap();
            let path = blocks_dir.join(key.path().as_str());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, [0; 10]).unwrap();
        }
        let found = survey(dir.path());
        let contents = *found.namespaces[0].ranks[0].contents.as_ref().unwrap();
        assert!(!contents.exact);
        assert!(contents.blocks.abs_diff(BLOCKS) < BLOCKS / 20, "{contents:?}");
        assert_eq!(contents.bytes, contents.blocks * 10);
    }

    #[test]
    fn a_config_that_cannot_be_understood_is_reported_as_such() {
        let dir = tempfile::tempdir().unwrap();
        put(&dir.path().join("m_0123456789ab/config.json"), 3);
        let [namespace] = &survey(dir.path()).namespaces[..] else { panic!("one namespace expected") };
        assert!(namespace.config.is_err());
    }
}
