//! From a URL, an identity and rows to a running engine.

use std::sync::Arc;

use super::Engine;
use crate::buffer::Region;
use crate::config::TierConfig;
use crate::error::Result;
use crate::frame::ChecksumAlgorithm;
use crate::identity::{Identity, Namespace};
use crate::index::Set;
use crate::store::faulty::{Faults, FaultyStore};
use crate::store::url::{self, Place};
use crate::store::{BlockStore, files};

/// Makes what the crate makes once per process, such as random seeds. Called while no other thread can fork, it spares a
/// child that begins in the middle of that from waiting for ever for a thread that it doesn't have.
pub fn warm_up() {
    let _ = Set::<u64>::default();
    files::warm_up();
    for algorithm in [ChecksumAlgorithm::Xxh3, ChecksumAlgorithm::Crc64Nvme] {
        algorithm.of([[0; 1024].as_slice()]);
    }
    crc_fast::crc32_iscsi(&[0; 1024]);
}

impl Engine {
    /// Opens the tier at `url` for blocks of `identity` that move to and from the rows of `region`.
    ///
    /// The identity's `row_bytes` is filled in from the rows. Where it states `payload_bytes`, only so many bytes of each
    /// row are stored and loaded. `faults` makes the store misbehave, for tests.
    ///
    /// # Errors
    /// `Config` when the URL, the options, the identity and the rows don't fit together; `IdentityMismatch` when the
    /// namespace was written under another identity; whatever opening the store fails with.
    pub fn open(
        url: &str,
        identity: &Identity,
        region: &Arc<Region>,
        config: &TierConfig,
        faults: Option<Arc<Faults>>,
    ) -> Result<Self> {
        let place = Place::parse(url)?;
        let identity = identity.with_row_bytes(region.row_bytes() as u64)?;
        let namespace = Namespace::new(&identity, config.kind)?;
        let region = region.cut_to(namespace.payload_bytes() as usize)?;
        let store = url::open(&place, &namespace, config)?;
        let store: Arc<dyn BlockStore> = match faults {
            Some(faults) => Arc::new(FaultyStore::new(store, faults)),
            None => store,
        };
        Self::start(store, region, config.engine())
    }
}
