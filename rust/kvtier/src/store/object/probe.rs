//! Looking for blocks: one HEAD each, side by side.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::failure::ServerError;
use super::{Location, Objects, Probed};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::BlockKey;

impl Objects {
    pub(super) async fn probe_blocks(self: Arc<Self>, keys: Vec<BlockKey>) -> Result<Vec<Probed>> {
        let until = Instant::now() + self.config.probe_timeout;
        let probes = join_all(keys.iter().map(|key| self.probe_block(key, until)));
        self.while_wanted(None, async { Ok(probes.await) }).await
    }

    async fn probe_block(&self, key: &BlockKey, until: Instant) -> Probed {
        match timeout_at(until, self.look_for(key)).await {
            Ok(Ok(probed)) => probed,
            Ok(Err(error)) => Probed::Unknown(error),
            Err(_) => {
                Probed::Unknown(Error::new(ErrorKind::Timeout, "not done within lookup_timeout").with("key", key))
            }
        }
    }

    async fn look_for(&self, key: &BlockKey) -> Result<Probed> {
        let path = self.path_of(key)?;
        match self.attempts(&path, |_| self.head(&path)).await {
            Ok(meta) if meta.size == self.block_bytes() => Ok(Probed::Present(Location::default())),
            Ok(_) => Ok(Probed::Absent),
            Err(failure) if failure.is(ServerError::is_missing_object) => {
                self.check_bucket().await?;
                Ok(Probed::Absent)
            }
            Err(failure) => Err(failure.error),
        }
    }
}
