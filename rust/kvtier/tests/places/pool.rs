//! Pools: what lies in their slots, by the bytes alone.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtier::config::DirectIo;
use kvtier::frame::Trailer;
use kvtier::io::IoEngine;
use kvtier::layout::BlockKey;
use kvtier::store::BlockStore;
use kvtier::store::packed::format::{Geometry, Header, KeyName, NamespaceRecord, SlotState, Superblock, TablePage};
use kvtier::store::packed::{Bounds, PackedConfig, PackedStore};
use kvtier::store::url::format_of;

use super::{Open, Place, io, ring, test_root};

type Configure = Box<dyn Fn(&mut PackedConfig)>;

/// A pool in a directory of its own, which goes with it.
pub struct PackedPlace {
    root: tempfile::TempDir,
    configure: Configure,
    io: fn(usize) -> Arc<dyn IoEngine>,
}

/// Where a block lies.
pub struct Slot {
    pub path: PathBuf,
    pub header: Header,
    pub number: u32,
    pub offset: u64,
    pub bytes: u64,
    /// Of its entry's page.
    pub page_offset: u64,
}

pub fn bounds(segments: u64) -> Bounds {
    let segment_bytes = 1 << 20;
    let max_bytes = Some(Superblock::cap_for(segments, segment_bytes));
    Bounds { max_bytes, segment_bytes: Some(segment_bytes), min_free_bytes: None }
}

pub fn segments(root: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(root.join("kvtier-pool")).into_iter().flatten();
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "seg"));
    paths.sort();
    paths
}

pub fn page_at(file: &File, at: u64) -> [u8; 4096] {
    let mut page = [0; 4096];
    file.read_exact_at(&mut page, at).unwrap();
    page
}

fn epoch(root: &Path, namespace: &str) -> Option<u64> {
    let records = fs::read_dir(root.join("kvtier-pool")).into_iter().flatten().map(|entry| entry.unwrap().path());
    records
        .filter(|path| path.extension().is_some_and(|ext| ext == "ns"))
        .filter_map(|path| NamespaceRecord::decode(&page_at(&File::open(path).unwrap(), 0)).ok())
        .find_map(|record| (record.name == namespace).then_some(record.epoch))
}

/// The slot that holds a block of the namespace under `key`.
pub fn slot_of(root: &Path, namespace: &str, key: &BlockKey) -> Option<Slot> {
    let epoch = epoch(root, namespace)?;
    for path in segments(root) {
        let file = File::open(&path).unwrap();
        let Ok(header) = Header::decode(&page_at(&file, 0)) else { continue };
        if (header.namespace.as_str(), header.epoch) != (namespace, epoch) {
            continue;
        }
        let geometry = Geometry { slots: header.slots, slot_bytes: header.slot_bytes };
        for page in 0..geometry.table_pages() {
            let bytes = page_at(&file, geometry.page_offset(page));
            let table = TablePage::decode(&bytes, header.pool, header.segment, page as u32, header.generation).unwrap();
            for (number, entry) in geometry.slots_of(page).zip(table.entries) {
                if entry.is_some_and(|e| e.state == SlotState::Block && e.name == KeyName::of(key)) {
                    return Some(Slot {
                        path,
                        number,
                        offset: geometry.slot_offset(number),
                        bytes: geometry.slot_bytes,
                        page_offset: geometry.page_offset(page),
                        header,
                    });
                }
            }
        }
    }
    None
}

impl PackedPlace {
    pub fn new(configure: impl Fn(&mut PackedConfig) + 'static) -> Self {
        let root = test_root();
        Self { root, configure: Box::new(configure), io }
    }

    /// Whose transfers go through a ring of `io_uring`.
    pub fn on_a_ring() -> Self {
        Self { io: ring, ..Self::new(|_| {}) }
    }

    pub fn buffered() -> Self {
        Self::new(|config| config.direct_io = DirectIo::Off)
    }

    /// On a file system in memory, where there is one.
    pub fn on_tmpfs() -> Self {
        let place = Self::new(|_| {});
        match tempfile::tempdir_in("/dev/shm") {
            Ok(root) => Self { root, ..place },
            Err(_) => place,
        }
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn try_open(&self, open: &Open) -> kvtier::error::Result<Arc<dyn BlockStore>> {
        let namespace = open.namespace();
        let mut config = PackedConfig::new(format_of(&namespace), bounds(32));
        config.verify = open.verify;
        config.read_only = open.read_only;
        (self.configure)(&mut config);
        let io = (self.io)(4);
        Ok(Arc::new(PackedStore::open(self.root(), &namespace, config, io)?))
    }

    pub fn slot_of(&self, open: &Open, key: &BlockKey) -> Option<Slot> {
        slot_of(self.root(), open.namespace().blocks_dir(), key)
    }
}

impl Place for PackedPlace {
    fn open(&self, open: &Open) -> Arc<dyn BlockStore> {
        self.try_open(open).unwrap()
    }

    fn in_slots(&self) -> bool {
        true
    }

    fn read(&self, open: &Open, key: &BlockKey) -> Option<Vec<u8>> {
        let slot = self.slot_of(open, key)?;
        let mut block = vec![0; slot.bytes as usize];
        File::open(slot.path).unwrap().read_exact_at(&mut block, slot.offset).unwrap();
        Some(block)
    }

    fn write(&self, open: &Open, key: &BlockKey, bytes: Option<&[u8]>) {
        let slot = self.slot_of(open, key).unwrap();
        let bytes = bytes.unwrap();
        assert_eq!(bytes.len() as u64, slot.bytes, "a slot has one length");
        let mut bytes = bytes.to_vec();
        // Of the segment's generation, so that it differs in nothing but what is meant.
        if let Some(page) = bytes.last_chunk_mut()
            && let Ok(trailer) = Trailer::decode(page)
        {
            Trailer { placement: slot.header.generation, ..trailer }.encode(page);
        }
        let file = File::options().write(true).open(slot.path).unwrap();
        file.write_all_at(&bytes, slot.offset).unwrap();
    }

    fn inode(&self, open: &Open, key: &BlockKey) -> Option<u64> {
        self.slot_of(open, key).map(|slot| slot.offset)
    }

    fn litter(&self, _: &Open) {
        let pool = self.root().join("kvtier-pool");
        for stray in ["README", ".hidden.seg", "0.seg", "0000000G.seg", "00000009.seg.tmp"] {
            fs::write(pool.join(stray), "x").unwrap();
        }
        fs::write(pool.join("00000020.seg"), "neither a header nor anything else").unwrap();
        fs::write(self.root().join("notes"), "x").unwrap();
    }

    fn unfinished(&self, _: &Open) -> usize {
        0
    }
}
