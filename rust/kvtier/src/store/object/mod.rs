//! One object per block in a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! ```text
//! <prefix>/<model>_<digest>/config.json               the identity, shared by all ranks
//! <prefix>/<model>_<digest>_r<rank>/hhh/hh_g0/….bin   the blocks
//! ```
//! The names and bytes are those of a directory of files, so any client can copy a block from one to the other.
//!
//! An operation is a task of the process's [`Runtime`]: it is begun at once and answered later. Every request is made
//! under the row's lease, with a bounded number of tries; when the lease ends (a deadline, a reset, a shutdown) the task
//! drops its request and answers once nobody holds the row any more.

mod attempt;
mod config_json;
mod failure;
mod heal;
mod hedge;
mod http;
mod inspect;
mod list;
mod pace;
mod place;
mod probe;
mod provider;
mod read;
mod row;
mod survey;
mod write;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use object_store::path::Path;
use tokio::sync::{Notify, Semaphore};

pub use inspect::{Bucket, BucketReport, Checksums, Trials};
pub use place::{ObjectPlace, Provider};

use self::hedge::Hedge;
use self::pace::Pace;
use self::provider::Client;
use super::{BlockStore, Done, Loaded, Location, Probed, StoreInfo, Stored};
use crate::buffer::{LeaseWatch, RowLease};
use crate::config::ObjectConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{BlockFormat, Verify};
use crate::identity::Namespace;
use crate::io::{Runtime, Task};
use crate::layout::BlockKey;
use crate::sync::{Condvar, Mutex};

/// How a [`BucketStore`] is opened.
#[derive(Clone, Debug)]
pub struct BucketConfig {
    /// How blocks lie.
    pub format: BlockFormat,
    /// Whether checksums are compared at load.
    pub verify: Verify,
    /// Whether stores are refused and nothing in the bucket is changed.
    pub read_only: bool,
    /// How long a probe may take.
    pub probe_timeout: Duration,
    /// Everything about the service.
    pub object: ObjectConfig,
}

/// The store; see the [module](self).
pub struct BucketStore {
    objects: Arc<Objects>,
}

/// What the operations of a store share; they keep it until they have ended.
struct Objects {
    client: Arc<dyn Client>,
    /// The client for uploads with a checksum, if they shall carry one.
    checksums: Option<Arc<dyn Client>>,
    place: ObjectPlace,
    /// Where requests go, for messages.
    endpoint: String,
    addressing: Option<&'static str>,
    /// What every block's name begins with: `<prefix>/<blocks_dir>/`.
    base: String,
    config_path: Path,
    config: BucketConfig,
    runtime: Arc<Runtime>,
    /// One permit for each request under way.
    requests: Semaphore,
    uploads: Pace,
    downloads: Pace,
    hedge: Option<Hedge>,
    /// Whether the server is asked not to overwrite; off when it has said that it can't.
    conditional_put: AtomicBool,
    /// Whether uploads carry a checksum; off when the server has refused one for that.
    upload_checksums: AtomicBool,
    /// Why nothing may be done here, where that was found after opening.
    refusal: OnceLock<String>,
    bucket: Seen,
    /// Held by whoever is finding out whether the bucket is there.
    bucket_check: tokio::sync::Mutex<()>,
    /// Told when leases have ended, and when the store is closed.
    ended: Notify,
    closed: AtomicBool,
    running: Running,
}

impl BucketStore {
    /// Opens `namespace` at `place`.
    ///
    /// # Errors
    /// `Config` when options don't fit together. With [`ObjectConfig::startup_check`] also what the service says:
    /// `Unavailable` when it can't be reached, or the bucket isn't there, `Permission` when the credentials are refused,
    /// `IdentityMismatch` when the namespace was written under another identity.
    pub fn open(place: &ObjectPlace, namespace: &Namespace, config: BucketConfig) -> Result<Self> {
        let connected = provider::connect(place, &config.object)?;
        let base = place.object_name(&format!("{}/", namespace.blocks_dir()));
        object_path(&base)?;
        let objects = Arc::new(Objects {
            client: connected.client,
            checksums: connected.checksums,
            place: place.clone(),
            endpoint: connected.endpoint,
            addressing: connected.addressing,
            base,
            config_path: object_path(&place.object_name(&namespace.config_path()))?,
            runtime: Runtime::shared()?,
            requests: Semaphore::new(config.object.concurrency),
            uploads: Pace::new(config.object.upload_rate),
            downloads: Pace::new(config.object.download_rate),
            hedge: config.object.hedge_quantile.map(Hedge::new),
            conditional_put: AtomicBool::new(true),
            upload_checksums: AtomicBool::new(true),
            refusal: OnceLock::new(),
            bucket: Seen::new(),
            bucket_check: tokio::sync::Mutex::default(),
            ended: Notify::new(),
            closed: AtomicBool::new(false),
            running: Running::default(),
            config,
        });
        objects.check_identity(namespace)?;
        Ok(Self { objects })
    }
}

impl Objects {
    /// Runs `operation` as a task and gives its answer. Whatever happens to the task, there is one.
    fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        done: Done<T>,
        operation: impl Future<Output = Result<T>> + Send + 'static,
    ) {
        let objects = Arc::clone(self);
        let running = RunningOperation::begin(self);
        self.runtime.spawn(async move {
            let answer = match objects.refusal.get() {
                None => operation.await,
                Some(why) => Err(Error::new(ErrorKind::IdentityMismatch, why)),
            };
            done.give(answer);
            drop(running);
        });
    }

    /// Runs `work` until the lease that `watch` belongs to has ended, or the store is closed.
    ///
    /// # Errors
    /// `Timeout` when that came first; `work` was dropped then, where it was.
    async fn while_wanted<T>(&self, watch: Option<&LeaseWatch>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let over = || Err(Error::new(ErrorKind::Timeout, "the operation's time is over"));
        if watch.is_some_and(|watch| !watch.is_open()) {
            return over();
        }
        match select(pin!(work), pin!(self.until_unwanted(watch))).await {
            Either::Left((done, _)) => done,
            Either::Right(((), _)) => over(),
        }
    }

    async fn until_unwanted(&self, watch: Option<&LeaseWatch>) {
        loop {
            let mut ended = pin!(self.ended.notified());
            // Listen first and look then, so that nothing is missed in between.
            ended.as_mut().enable();
            if self.closed.load(Ordering::Acquire) || watch.is_some_and(|watch| !watch.is_open()) {
                return;
            }
            ended.await;
        }
    }

    /// The name of a block's object.
    fn path_of(&self, key: &BlockKey) -> Result<Path> {
        object_path(&[self.base.as_str(), key.path().as_str()].concat())
    }

    /// Adds to an error which object of which bucket it is about.
    fn about(&self, path: &Path, error: Error) -> Error {
        let error = error.with("bucket", &self.place.bucket).with("object", path).with("endpoint", &self.endpoint);
        match self.addressing {
            Some(addressing) => error.with("addressing", addressing),
            None => error,
        }
    }

    /// # Errors
    /// `ReadOnly` when the store was opened so.
    fn check_writable(&self) -> Result<()> {
        if self.config.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only"));
        }
        Ok(())
    }

    fn block_bytes(&self) -> u64 {
        self.config.format.block_bytes() as u64
    }

    /// The byte ranges in which a block moves: one, or several side by side.
    fn parts(&self) -> Vec<std::ops::Range<u64>> {
        let (whole, part) = (self.block_bytes(), self.config.object.part_bytes);
        (0..whole.div_ceil(part).max(1)).map(|i| i * part..((i + 1) * part).min(whole)).collect()
    }
}

impl BlockStore for BucketStore {
    fn info(&self) -> StoreInfo {
        let objects = &self.objects;
        StoreInfo {
            kind: "object",
            place: objects.place.to_string(),
            payload_bytes: objects.config.format.payload_bytes(),
            // A quarter of what the engine begins is kept for loads, and with none there stores are to use all requests; how
            // many there are at the same time is bounded by `requests`.
            concurrency: (objects.config.object.concurrency * 4).div_ceil(3),
            // Beginning an operation takes a microsecond, and the network's threads have other things to do.
            threads: 1,
            turn: usize::MAX,
            io_engine: "network",
            read_only: objects.config.read_only,
            exclusive: false,
            listed: objects.config.object.list_at_start,
        }
    }

    fn spawn(&self, task: Task) {
        if !self.objects.closed.load(Ordering::Acquire) {
            self.objects.runtime.run(task);
        }
    }

    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>) {
        self.objects.begin(done, Arc::clone(&self.objects).put_block(key, row));
    }

    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        self.objects.begin(done, Arc::clone(&self.objects).get_block(key, row));
    }

    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>) {
        self.objects.begin(done, Arc::clone(&self.objects).probe_blocks(keys));
    }

    fn leases_ended(&self) {
        self.objects.ended.notify_waiters();
    }

    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        self.objects.list_blocks(found)
    }

    fn reset(&self) -> Result<()> {
        self.objects.delete_blocks()
    }

    fn close(&self, timeout: Duration) -> usize {
        let objects = &self.objects;
        objects.closed.store(true, Ordering::Release);
        objects.ended.notify_waiters();
        objects.running.wait_for_none(timeout.max(SHORTEST_CLOSE))
    }
}

/// An object's name as it is, where `Path::from` would percent-encode it.
fn object_path(name: &str) -> Result<Path> {
    Path::parse(name).map_err(|e| Error::new(ErrorKind::Config, format!("no object can be named {name:?}: {e}")))
}

/// What dropping requests takes at least, however little time is left for closing.
const SHORTEST_CLOSE: Duration = Duration::from_secs(1);

impl Drop for BucketStore {
    fn drop(&mut self) {
        self.objects.closed.store(true, Ordering::Release);
        self.objects.ended.notify_waiters();
    }
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketStore({} at {})", self.objects.place, self.objects.endpoint)
    }
}

/// How many operations are under way.
#[derive(Debug, Default)]
struct Running {
    count: Mutex<usize>,
    none: Condvar,
}

impl Running {
    /// Waits until none is, at most for `timeout`; returns how many are left.
    fn wait_for_none(&self, timeout: Duration) -> usize {
        let until = Instant::now().checked_add(timeout);
        let mut count = self.count.lock();
        while *count > 0 {
            match until {
                Some(until) if self.none.wait_until(&mut count, until) => break,
                Some(_) => {}
                None => self.none.wait(&mut count),
            }
        }
        *count
    }
}

/// Counts one operation, however it ends.
struct RunningOperation(Arc<Objects>);

impl RunningOperation {
    fn begin(objects: &Arc<Objects>) -> Self {
        *objects.running.count.lock() += 1;
        Self(Arc::clone(objects))
    }
}

impl Drop for RunningOperation {
    fn drop(&mut self) {
        let mut count = self.0.running.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.running.none.notify_all();
        }
    }
}

/// When the bucket last showed that it is there.
#[derive(Debug)]
struct Seen(Mutex<Option<Instant>>);

impl Seen {
    /// For how long it is taken to be there still.
    const GOOD_FOR: Duration = Duration::from_secs(30);

    fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn now(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    fn is_recent(&self) -> bool {
        self.0.lock().is_some_and(|at| at.elapsed() < Self::GOOD_FOR)
    }
}
