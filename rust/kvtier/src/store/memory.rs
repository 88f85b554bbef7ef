//! Blocks in the process's own memory, framed and verified as in files: for tests, for trying things out, and as the
//! plainest example of a [`BlockStore`].
//!
//! A named store outlives the tiers that use it: tiers of one process that open `memory://name` share its blocks, as
//! processes that open one directory do. An unnamed one belongs to its tier alone.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{BlockStore, Done, Loaded, Location, Probed, StoreInfo, Stored, check_source, check_target};
use crate::buffer::RowLease;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, Verify};
use crate::index::Map;
use crate::io::{IoEngine, Task};
use crate::layout::BlockKey;
use crate::process;
use crate::sync::Mutex;

/// Blocks of all namespaces under one name: by namespace directory and key.
type Shelf = Mutex<Map<(Arc<str>, BlockKey), Arc<[u8]>>>;

/// The named shelves.
type Shelves = Map<String, Arc<Shelf>>;

/// The shelves of a process, by how many forks lie between it and the program's first: a child begins with none, since
/// threads that it doesn't have may hold the locks of its parent's.
static SHELVES: [Mutex<Option<Shelves>>; 64] = [const { Mutex::new(None) }; 64];

/// The store; see the [module](self).
pub struct MemoryStore {
    shelf: Arc<Shelf>,
    namespace: Arc<str>,
    format: BlockFormat,
    verify: Verify,
    io: Arc<dyn IoEngine>,
    info: StoreInfo,
}

/// How a [`MemoryStore`] is opened.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Which blocks are shared with other stores of the process; `None` for none.
    pub name: Option<String>,
    /// The directory name of the namespace's blocks.
    pub namespace: String,
    /// How blocks lie.
    pub format: BlockFormat,
    /// Whether checksums are compared at load.
    pub verify: Verify,
    /// Whether stores are refused.
    pub read_only: bool,
}

impl MemoryStore {
    /// Opens the store; its operations run on the threads of `io`.
    pub fn open(config: MemoryConfig, io: Arc<dyn IoEngine>) -> Self {
        let place = format!("memory://{}", config.name.as_deref().unwrap_or_default());
        let shelf = match config.name {
            Some(name) => {
                let mut shelves = SHELVES[process::forks() as usize % SHELVES.len()].lock();
                Arc::clone(shelves.get_or_insert_default().entry(name).or_default())
            }
            None => Arc::default(),
        };
        let info = StoreInfo {
            kind: "memory",
            place,
            payload_bytes: config.format.payload_bytes(),
            concurrency: io.threads(),
            threads: io.threads(),
            turn: usize::MAX,
            io_engine: io.name(),
            read_only: config.read_only,
            exclusive: false,
            listed: false,
        };
        Self { shelf, namespace: config.namespace.into(), format: config.format, verify: config.verify, io, info }
    }

    /// The stored bytes of a block, whatever they are worth.
    pub fn stored_bytes(&self, key: BlockKey) -> Option<Arc<[u8]>> {
        self.get(key)
    }

    /// Puts other bytes in the place of a block, or none, as damage to a file or its removal would.
    pub fn replace_bytes(&self, key: BlockKey, bytes: Option<Vec<u8>>) {
        let mut blocks = self.shelf.lock();
        match bytes {
            Some(bytes) => blocks.insert(self.name_of(key), bytes.into()),
            None => blocks.remove(&self.name_of(key)),
        };
    }

    fn put(&self, key: BlockKey, row: RowLease) -> Result<Stored> {
        self.check_writable()?;
        check_source(&row, &self.format)?;
        let location = Location::default();
        if self.get(key).map_or(Ok(false), |known| self.stands(&known))? {
            return Ok(Stored { location, bytes: 0 });
        }
        let mut block = vec![0; self.format.block_bytes()];
        let (payload, tail) = block.split_at_mut(self.format.payload_bytes());
        let access = row.enter()?;
        access.copy_to(payload)?;
        access.leave()?;
        self.format.seal(key, [&*payload], SystemTime::now(), tail);
        let mut blocks = self.shelf.lock();
        let known = blocks.entry(self.name_of(key)).or_default();
        if !self.stands(known)? {
            *known = block.into();
        }
        drop(blocks);
        Ok(Stored { location, bytes: self.format.payload_bytes() as u64 })
    }

    fn fetch(&self, key: BlockKey, row: RowLease) -> Result<Loaded> {
        check_target(&row, &self.format)?;
        let block = self.get(key).ok_or_else(|| Error::new(ErrorKind::Missing, "no block under that key"))?;
        let verified = if block.len() == self.format.block_bytes() {
            let (payload, tail) = block.split_at(self.format.payload_bytes());
            self.format.verify(key, [payload], tail, self.verify)
        } else {
            Err(self.format.wrong_length(block.len() as u64, block.last_chunk()))
        };
        if let Err(error) = verified {
            if error.kind().is_proof_of_damage() && !self.info.read_only {
                self.remove_if_same(key, &block);
            }
            return Err(error);
        }
        let mut access = row.enter()?;
        access.copy_from(&block[..self.format.payload_bytes()])?;
        access.leave()?;
        Ok(Loaded { bytes: self.format.payload_bytes() as u64 })
    }

    fn check_writable(&self) -> Result<()> {
        if self.info.read_only { Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only")) } else { Ok(()) }
    }

    /// Whether bytes that have a block's name are to be taken for it: those of another length make room.
    ///
    /// # Errors
    /// `UnsupportedVersion` for a newer format's, which stay.
    fn stands(&self, known: &[u8]) -> Result<bool> {
        if known.len() == self.format.block_bytes() {
            return Ok(true);
        }
        let error = self.format.wrong_length(known.len() as u64, known.last_chunk());
        if error.kind().is_proof_of_damage() { Ok(false) } else { Err(error) }
    }

    fn is_stored(&self, key: BlockKey) -> bool {
        self.get(key).is_some_and(|block| block.len() == self.format.block_bytes())
    }

    fn get(&self, key: BlockKey) -> Option<Arc<[u8]>> {
        self.shelf.lock().get(&self.name_of(key)).cloned()
    }

    /// Another tier may have replaced the block since it was read.
    fn remove_if_same(&self, key: BlockKey, damaged: &Arc<[u8]>) {
        let mut blocks = self.shelf.lock();
        if blocks.get(&self.name_of(key)).is_some_and(|now| Arc::ptr_eq(now, damaged)) {
            blocks.remove(&self.name_of(key));
        }
    }

    fn name_of(&self, key: BlockKey) -> (Arc<str>, BlockKey) {
        (Arc::clone(&self.namespace), key)
    }
}

impl BlockStore for MemoryStore {
    fn info(&self) -> StoreInfo {
        self.info.clone()
    }

    fn spawn(&self, task: Task) {
        self.io.spawn(task);
    }

    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>) {
        done.give(self.put(key, row));
    }

    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        done.give(self.fetch(key, row));
    }

    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>) {
        let probed = keys
            .into_iter()
            .map(|key| if self.is_stored(key) { Probed::Present(Location::default()) } else { Probed::Absent });
        done.give(Ok(probed.collect()));
    }

    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        let keys: Vec<_> = {
            let blocks = self.shelf.lock();
            blocks.keys().filter(|(namespace, _)| *namespace == self.namespace).map(|(_, key)| *key).collect()
        };
        keys.into_iter().all(|key| found(key, Location::default()));
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        self.check_writable()?;
        self.shelf.lock().retain(|(namespace, _), _| *namespace != self.namespace);
        Ok(())
    }

    fn close(&self, timeout: Duration) -> usize {
        self.io.stop(timeout)
    }
}
