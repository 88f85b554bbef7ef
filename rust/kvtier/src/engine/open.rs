//! From a URL, an identity and rows to a running engine.

use std::sync::Arc;

use super::Engine;
use crate::buffer::Region;
use crate::config::TierConfig;
use crate::error::Result;
use crate::identity::{Identity, Namespace};
use crate::store::BlockStore;
use crate::store::faulty::{Faults, FaultyStore};
use crate::store::url::{self, Place};

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
