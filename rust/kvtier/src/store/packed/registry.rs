//! One pool object per process and root, shared by the process's tiers there.

use std::path::Path;
use std::sync::{Arc, Weak};

use rustix::fs::fstat;

use super::catalogue::NamespaceId;
use super::keeper::Keeper;
use super::policy::SecondChance;
use super::pool::{Pool, State, Station, mode_of};
use super::segment::Access;
use super::site::Locked;
use super::{Bounds, PackedConfig};
use crate::buffer::PAGE;
use crate::config::DirectIo as Choice;
use crate::error::{Error, ErrorKind, Result};
use crate::io::DirectIo;
use crate::process;
use crate::sync::Mutex;

/// What tells pools apart: the directory's device and inode, and whether it is open for reading only.
type Key = (u64, u64, bool);

type Known = Vec<(Key, Weak<Shared>)>;

/// The pools of a process, by how many forks lie between it and the program's first: a child begins with none, since
/// threads that it doesn't have may hold the locks of its parent's.
static POOLS: [Mutex<Known>; 64] = [const { Mutex::new(Vec::new()) }; 64];

/// A pool and its keeper, as long as any tier of the process uses it.
#[derive(Debug)]
pub(super) struct Shared {
    pool: Arc<Pool>,
    keeper: Keeper,
    /// Tiers that use it; once 0, it is over.
    users: Mutex<usize>,
}

/// Opens the pool at `root` for one more tier.
pub(super) fn open(root: &Path, config: &PackedConfig) -> Result<Arc<Shared>> {
    let mut pools = POOLS[process::forks() as usize % POOLS.len()].lock();
    let (file_mode, dir_mode) = (mode_of(config.file_mode), mode_of(config.dir_mode));
    let locked = Locked::take(root)?;
    pools.retain(|(_, shared)| shared.strong_count() > 0);
    // A pool that this process has open already takes part in what the others agree on, and so does this tier.
    let key = locked.key(config.read_only)?;
    if let Some(shared) = pools.iter().find(|(known, _)| *known == key).and_then(|(_, shared)| shared.upgrade()) {
        let mut users = shared.users.lock();
        if *users > 0 {
            shared.pool.check_bounds(config.bounds)?;
            *users += 1;
            drop(users);
            return Ok(shared);
        }
    }
    let block_bytes = config.format.block_bytes() as u64;
    let site = locked.open(config.bounds, block_bytes, config.read_only, dir_mode, file_mode);
    let site = site.map_err(|e| e.with("root", locked.path.display()))?;
    if site.changed {
        let superblock = &site.superblock;
        log::info!(
            "the pool in {} has segments of {} bytes, max_bytes={}, min_free_bytes={}",
            site.path.display(),
            superblock.segment_bytes,
            superblock.max_bytes,
            superblock.min_free_bytes
        );
    }
    let direct = match config.direct_io {
        Choice::Off => DirectIo::off(),
        _ => DirectIo::of(&site.dir, site.file_system, site.path.display().to_string()),
    };
    // Slots and tables are made of pages.
    let direct = if direct.alignment().is_some_and(|align| align > PAGE) { DirectIo::off() } else { direct };
    if config.direct_io == Choice::On && direct.alignment().is_none() {
        let message = "direct_io=\"on\": the root's file system has none; give \"auto\" or \"off\"";
        return Err(Error::new(ErrorKind::Config, message));
    }
    let access = Access { direct: direct.alignment().is_some(), read_only: config.read_only, mode: file_mode };
    let pool = Arc::new(Pool::new(site, access, direct, Box::new(SecondChance)));
    drop(locked);
    let keeper = Keeper::start(&pool)?;
    let shared = Arc::new(Shared { pool, keeper, users: Mutex::new(1) });
    pools.retain(|(known, _)| *known != key);
    pools.push((key, Arc::downgrade(&shared)));
    Ok(shared)
}

impl Locked {
    fn key(&self, read_only: bool) -> Result<Key> {
        let stat = fstat(self.root()).map_err(|e| Error::from_io("looking at the root", e.into()))?;
        Ok((stat.st_dev, stat.st_ino, read_only))
    }
}

impl Pool {
    /// Whether a tier that asks for these bounds can use the pool as it is.
    fn check_bounds(&self, bounds: Bounds) -> Result<()> {
        let known = self.superblock();
        for (name, wanted, has) in [
            ("max_bytes", bounds.max_bytes, known.max_bytes),
            ("min_free_bytes", bounds.min_free_bytes, known.min_free_bytes),
            ("segment_bytes", bounds.segment_bytes, known.segment_bytes),
        ] {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
                let message = format!(
                    "{name}={wanted}: the pool is open in this process with {has}; give the same, or leave the option out"
                );
                return Err(Error::new(ErrorKind::Config, message).with("root", self.site.path.display()));
            }
        }
        Ok(())
    }
}

impl Shared {
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Opens a namespace for a tier.
    ///
    /// # Errors
    /// As [`Pool::open_namespace`]; the tier has left the pool then.
    pub(super) fn open_namespace(
        &self,
        name: &str,
        identity: [u8; 32],
        payload_bytes: u64,
        slot_bytes: u64,
        tells_all: bool,
    ) -> Result<NamespaceId> {
        let opened = self.pool.open_namespace(name, identity, payload_bytes, slot_bytes, tells_all);
        if opened.is_err() {
            self.leave_pool();
        }
        opened
    }

    /// A tier is done with the pool; the last one ends it.
    pub(super) fn leave(&self, namespace: NamespaceId) {
        let given_up = {
            let mut state = self.pool.state.lock();
            let State { catalogue, stations, .. } = &mut *state;
            let station = &mut stations[namespace];
            station.users = station.users.saturating_sub(1);
            let last = station.users == 0;
            last.then(|| {
                catalogue.unpin_all(namespace);
                let record = station.record.clone();
                std::mem::replace(station, Station { record, ..Station::default() })
            })
        };
        // Its segments are free for others; those with writes in flight are, when these have ended.
        for waiter in given_up.into_iter().flat_map(|station| station.waiting) {
            (waiter.then)(Err(Error::new(ErrorKind::Shutdown, "the tier was shut down")));
        }
        self.leave_pool();
    }

    fn leave_pool(&self) {
        let last = {
            let mut users = self.users.lock();
            *users = users.saturating_sub(1);
            *users == 0
        };
        if last {
            self.keeper.stop(&self.pool);
            self.pool.rebuild.stop();
            self.pool.scrub.stop();
            self.pool.close();
        }
    }
}

impl Pool {
    /// Nobody uses it any more.
    fn close(&self) {
        let given_up = {
            let mut state = self.state.lock();
            let give_up = |station: &mut Station| (station.active.take(), station.spare.take());
            state.stations.iter_mut().map(give_up).collect::<Vec<_>>()
        };
        drop(given_up);
        self.site.leave();
    }
}
