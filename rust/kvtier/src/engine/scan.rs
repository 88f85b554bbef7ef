//! Filling the index at the start, in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LOG_TARGET, Shared};
use crate::error::{Error, Result};

impl Shared {
    /// Fills the index in the background, where what the store finds is all there can be, or is wanted at once; `anew`
    /// forgets it first.
    pub(super) fn start_scan(self: &Arc<Self>, anew: bool) -> Result<()> {
        let scan = {
            let mut index = self.index.lock();
            if anew {
                index.clear();
                self.waiting_probes.store(0, Ordering::Release);
            }
            if !self.info.exclusive && !self.info.listed {
                return Ok(());
            }
            index.scan_begins()
        };
        let shared = Arc::clone(self);
        std::thread::Builder::new()
            .name("kvtier-scan".into())
            .spawn(move || shared.scan(scan))
            .map(drop)
            .map_err(|e| Error::from_io("starting the scan of the namespace", e))
    }

    fn scan(&self, scan: u64) {
        const BATCH: usize = 256;
        let mut batch = Vec::with_capacity(BATCH);
        let add = |batch: &mut Vec<_>| {
            let wanted = !self.closed.load(Ordering::Relaxed) && self.index.lock().scan_found(scan, batch);
            batch.clear();
            wanted
        };
        let scanned = self.store.0.scan(&mut |key, location| {
            batch.push((key, location));
            batch.len() < BATCH || add(&mut batch)
        });
        add(&mut batch);
        // Others can add blocks that a scan has not met, where the place is not this engine's alone.
        self.index.lock().scan_ends(scan, scanned.is_ok() && self.info.exclusive);
        if let Err(error) = scanned {
            log::warn!(target: LOG_TARGET, "the namespace could not be listed, unknown blocks are probed instead: {error}");
        }
    }
}
