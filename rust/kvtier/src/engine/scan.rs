//! Filling the index at the start, in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Phase, Shared};
use crate::error::{Error, Result};

/// What a scan that has ended has met of what was there.
#[derive(Clone, Copy)]
enum Knowledge {
    All,
    Some,
}

impl Shared {
    /// Fills the index in the background, where what the store finds is all there can be, or is wanted at once; `anew`
    /// forgets it first.
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
            if !self.info.exclusive && !self.info.listed {
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
        let flush = |batch: &mut Vec<_>, over: Option<Knowledge>| {
            // Asked and added under one lock, so that nothing listed before a reset is added after it.
            let state = self.state.lock();
            let wanted = state.scan == scan && state.phase != Phase::Closed;
            if wanted {
                let mut index = self.index.lock();
                for (key, location) in batch.drain(..) {
                    index.found(&key, location);
                }
                match over {
                    None => {}
                    Some(Knowledge::All) if self.info.exclusive => index.scan_is_complete(),
                    Some(_) => index.scan_is_over(),
                }
            }
            wanted
        };
        let scanned = self.store.0.scan(&mut |key, location| {
            batch.push((key, location));
            batch.len() < BATCH || flush(&mut batch, None)
        });
        match scanned {
            Ok(()) => {
                flush(&mut batch, Some(Knowledge::All));
            }
            Err(error) => {
                flush(&mut batch, Some(Knowledge::Some));
                log::warn!("the namespace could not be listed, unknown blocks are probed instead: {error}");
            }
        }
    }
}
