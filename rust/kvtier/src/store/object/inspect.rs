//! What a bucket is like, found out by trying: `kvtier doctor`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Extensions;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time::timeout;

use super::failure::{Failure, ServerError};
use super::http::{Filter, only_if_match};
use super::provider::{Client, Connected, connect};
use super::{ObjectPlace, Provider, object_path};
use crate::config::{ObjectConfig, UploadChecksum};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Runtime;

/// Of each request; a service that takes longer is told so.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests that a latency is the median of.
const TRIES: usize = 5;

/// Bytes of the objects that are written by way of trial.
const TRIAL_BYTES: usize = 4096;

/// What the names of all that is written by way of trial begin with, so that nothing else is ever removed with it.
const TRIAL: &str = ".kvtier-";

/// A bucket to look at.
pub struct Bucket {
    pub(super) client: Arc<dyn Client>,
    /// Its uploads carry CRC-64/NVME; for S3 only.
    checksums: Option<Arc<dyn Client>>,
    pub(super) place: ObjectPlace,
    endpoint: String,
    addressing: Option<&'static str>,
    pub(super) runtime: Arc<Runtime>,
}

/// What a bucket is like.
#[derive(Debug)]
pub struct BucketReport {
    /// The place, as its URL names it.
    pub place: String,
    /// Where requests go.
    pub endpoint: String,
    /// `"path"` or `"virtual-hosted"`, for S3.
    pub addressing: Option<&'static str>,
    /// How long listing one page below the prefix took, or why it can't be done.
    pub listing: Result<Duration>,
    /// What writing, reading and removing objects showed, or why that can't be done.
    pub trials: Result<Trials>,
}

/// What a few small objects showed; they are gone again.
#[derive(Clone, Debug)]
pub struct Trials {
    /// Median time of a PUT of 4 KiB.
    pub put: Duration,
    /// Median time of a HEAD.
    pub head: Duration,
    /// Median time of a GET of 4 KiB.
    pub get: Duration,
    /// Whether a PUT can be told not to overwrite.
    pub conditional_put: bool,
    /// Whether a DELETE can be told to remove one version only.
    pub conditional_delete: bool,
    /// What becomes of `upload_checksum="crc64nvme"`; `None` where there is no such option.
    pub checksums: Option<Checksums>,
}

/// What a server does with checksums that come with uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// An upload that doesn't have its checksum is refused.
    Compared,
    /// It is stored all the same.
    Ignored,
    /// Uploads that have one are refused.
    Refused,
}

impl Checksums {
    /// `"compared"`, `"ignored"` or `"refused"`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compared => "compared",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
        }
    }
}

impl Bucket {
    /// A client of the bucket at `place`. Sends nothing yet.
    ///
    /// # Errors
    /// `Config` when options don't fit together or don't fit the provider; `Unavailable` when no thread can be started.
    pub fn connect(place: &ObjectPlace, config: &ObjectConfig) -> Result<Self> {
        let config = match place.provider {
            Provider::S3 => ObjectConfig { upload_checksum: UploadChecksum::Crc64Nvme, ..config.clone() },
            Provider::Gcs | Provider::Azure => config.clone(),
        };
        let Connected { client, checksums, endpoint, addressing } = connect(place, &config)?;
        Ok(Self { client, checksums, place: place.clone(), endpoint, addressing, runtime: Runtime::shared()? })
    }

    /// Tries it out. Blocks the calling thread for seconds at most, or some 10 s a request where nobody answers.
    ///
    /// # Errors
    /// `Forked`, `Internal`; what the service refuses is part of the report.
    pub fn inspect(self: &Arc<Self>) -> Result<BucketReport> {
        let bucket = Arc::clone(self);
        let (listing, trials) = self.runtime.wait(async move {
            let listing = bucket.try_listing().await;
            let trials = match &listing {
                // It would only take longer to hear the same.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                    Err(Error::new(error.kind(), "not tried, since the bucket doesn't answer"))
                }
                _ => bucket.try_objects().await,
            };
            (listing, trials)
        })?;
        Ok(BucketReport {
            place: self.place.to_string(),
            endpoint: self.endpoint.clone(),
            addressing: self.addressing,
            listing,
            trials,
        })
    }

    /// Removes every object below the prefix, whose last part begins with `.kvtier-`: no engine's blocks lie at such a
    /// place. Blocks the calling thread. Returns how many there were.
    ///
    /// # Errors
    /// `InvalidInput` when the prefix is another one; what the service says.
    pub fn remove_trial(self: &Arc<Self>) -> Result<u64> {
        if !self.place.prefix.rsplit('/').next().is_some_and(|last| last.starts_with(TRIAL)) {
            let message = format!("{} is no place for trials: its last part doesn't begin with {TRIAL}", self.place);
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let bucket = Arc::clone(self);
        self.runtime.wait(async move {
            let prefix = bucket.place.object_name("");
            let mut removed = 0;
            loop {
                let options = PaginatedListOptions::default();
                let page = bucket.ask("listing", bucket.client.list_paginated(Some(&prefix), options)).await?;
                if page.result.objects.is_empty() {
                    return Ok(removed);
                }
                for object in page.result.objects {
                    bucket.ask("DELETE", bucket.client.delete(&object.location)).await?;
                    removed += 1;
                }
            }
        })?
    }

    async fn try_listing(&self) -> Result<Duration> {
        let prefix = self.place.object_name("");
        let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
        let begun = Instant::now();
        self.ask("listing", self.client.list_paginated(Some(&prefix), options)).await?;
        Ok(begun.elapsed())
    }

    async fn try_objects(&self) -> Result<Trials> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{TRIAL}doctor-{:x}-{:x}", std::process::id(), since.as_nanos());
        let path = object_path(&self.place.object_name(&name))?;
        let tried = self.try_object(&path).await;
        // Also after a failure: the answer to a PUT may have been lost.
        let removed = self.ask("DELETE", self.client.delete(&path)).await;
        match (tried, removed) {
            (Ok(_), Err(left)) => Err(left.with("left_behind", &path)),
            (tried, _) => tried,
        }
    }

    async fn try_object(&self, path: &Path) -> Result<Trials> {
        let put = self.median("PUT", || self.put(&*self.client, path, PutMode::Overwrite, Extensions::new())).await?;
        let head_options = || GetOptions { head: true, ..GetOptions::default() };
        let head = self.median("HEAD", || async { self.client.get_opts(path, head_options()).await.map(drop) }).await?;
        let get = self.median("GET", || async { self.client.get(path).await?.bytes().await.map(drop) }).await?;
        let again = self.send("PUT", self.put(&*self.client, path, PutMode::Create, Extensions::new())).await;
        let conditional_put = again.is_err_and(|failure| failure.is(ServerError::is_precondition));
        let other_version = only_if_match("\"0123456789abcdef0123456789abcdef\"", self.client.delete(path));
        let conditional_delete =
            self.send("DELETE", other_version).await.is_err_and(|failure| failure.is(ServerError::is_precondition));
        let checksums = match &self.checksums {
            Some(client) => Some(self.try_checksums(&**client, path).await?),
            None => None,
        };
        Ok(Trials { put, head, get, conditional_put, conditional_delete, checksums })
    }

    /// Sends a right checksum and a wrong one.
    async fn try_checksums(&self, client: &dyn Client, path: &Path) -> Result<Checksums> {
        let put = |extensions| self.send("PUT", self.put(client, path, PutMode::Overwrite, extensions));
        match put(Extensions::new()).await {
            Ok(()) => {}
            Err(failure) if failure.answer.is_some() => return Ok(Checksums::Refused),
            Err(failure) => return Err(failure.error),
        }
        let mut extensions = Extensions::new();
        // After the library has computed it.
        extensions.insert(Filter(Arc::new(|| Box::new(|slice| slice[0] ^= 1))));
        match put(extensions).await {
            Ok(()) => Ok(Checksums::Ignored),
            Err(failure) if failure.answer.is_some() => Ok(Checksums::Compared),
            Err(failure) => Err(failure.error),
        }
    }

    async fn put(
        &self,
        client: &dyn Client,
        path: &Path,
        mode: PutMode,
        extensions: Extensions,
    ) -> object_store::Result<()> {
        let payload = PutPayload::from(Bytes::from_static(&[0x5A; TRIAL_BYTES]));
        client.put_opts(path, payload, PutOptions { mode, extensions, ..PutOptions::default() }).await.map(drop)
    }

    async fn median<F: Future<Output = object_store::Result<()>>>(
        &self,
        what: &str,
        request: impl Fn() -> F,
    ) -> Result<Duration> {
        let mut times = [Duration::ZERO; TRIES];
        for time in &mut times {
            let begun = Instant::now();
            self.ask(what, request()).await?;
            *time = begun.elapsed();
        }
        times.sort_unstable();
        Ok(times[TRIES / 2])
    }

    pub(super) async fn ask<T>(&self, what: &str, request: impl Future<Output = object_store::Result<T>>) -> Result<T> {
        self.send(what, request).await.map_err(|failure| {
            let error = failure.error.with("bucket", &self.place.bucket).with("endpoint", &self.endpoint);
            match self.addressing {
                Some(addressing) => error.with("addressing", addressing),
                None => error,
            }
        })
    }

    pub(super) async fn send<T>(
        &self,
        what: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        match timeout(PATIENCE, request).await {
            Ok(answer) => answer.map_err(|e| Failure::of(what, &e)),
            Err(_) => {
                Err(Failure::passing(Error::new(ErrorKind::Timeout, format!("{what}: no answer in {PATIENCE:?}"))))
            }
        }
    }
}
