//! Filling the index at the start, in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LOG_TARGET, Phase, Shared};
use crate::error::{Error, Result};

impl Shared {
    /// Fills the index in the background, where what the store finds is all there can be; `anew` forgets it first.
    pub(super) fn start_scan(self: &Arc<Self>, anew: bool) -> Result<()> {
        let scan = {
            // Under both locks, so that no earlier scan adds to the index or completes it from here on.
            let mut state = self.state.lock();
            let mut index = self.index.lock();
            state.scan += 1;
            if anew {
                index.clear();
                self.waiting_probes.store(0, Ordering::Release);
            }
            if !self.info.exclusive {
                return Ok(());
            }
            index.scan_begins();
            state.scan
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
        let flush = |batch: &mut Vec<_>, complete: bool| {
            // Asked and added under one lock, so that nothing listed before a reset is added after it.
            let state = self.state.lock();
            let wanted = state.scan == scan && state.phase != Phase::Closed;
            if wanted {
                let mut index = self.index.lock();
                for (key, location) in batch.drain(..) {
                    index.found(&key, location);
                }
                if complete {
                    index.scan_is_complete();
                }
            }
            wanted
        };
        let scanned = self.store.0.scan(&mut |key, location| {
            batch.push((key, location));
            batch.len() < BATCH || flush(&mut batch, false)
        });
        match scanned {
            Ok(()) => {
                flush(&mut batch, true);
            }
            Err(error) => {
                log::warn!(target: LOG_TARGET, "the namespace could not be listed, unknown blocks are probed instead: {error}");
            }
        }
    }
}
