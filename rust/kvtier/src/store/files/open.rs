//! Opening: everything that can be wrong with a root is said here, not by the first block.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::locks::Claim;
use super::publish::Publishing;
use super::reset::Sweep;
use super::root::{Abilities, Root, flush_dir};
use super::{Files, FilesConfig, FilesStore, config_json, temporary};
use crate::buffer::ScratchPool;
use crate::config::{self, Durability};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{Namespace, NamespaceKind};
use crate::io::{DirectIo, IoEngine};
use crate::recurring::Recurring;

/// Bytes of whole-block scratch that wait for reuse, at most.
const KEPT_SCRATCH: usize = 32 << 20;

impl FilesStore {
    /// Opens `namespace` below the directory at `root`; operations run on `io`.
    ///
    /// # Errors
    /// `Config` when the root is no directory, or can't do what is asked for; `Permission` when it can't be written
    /// and `read_only` is not set; `IdentityMismatch` when the namespace was written under another identity;
    /// `Unavailable` when another store's claim on the namespace is in the way.
    pub fn open(root: &Path, namespace: &Namespace, config: FilesConfig, io: Arc<dyn IoEngine>) -> Result<Self> {
        let root = Root::open(root)?;
        let opened = if config.read_only {
            open_for_reading(&root, namespace)
        } else {
            open_for_storing(&root, namespace, &config)
        };
        let opened = opened.map_err(|e| explained(e, &root, namespace, &config))?;
        let direct = choose_direct_io(&config, opened.direct)?;
        let format = &config.format;
        let depth = io.depth();
        let files = Arc::new(Files {
            blocks_dir: namespace.blocks_dir().to_owned(),
            publishing: opened.publishing,
            direct: Arc::new(direct),
            reads_into_rows: config.reads_into_rows.unwrap_or(root.file_system().reads_surely_end()),
            // The engine's own tier takes no claim, so nobody can be sure to be alone beside it.
            exclusive: config.exclusive && namespace.kind() == NamespaceKind::Kvtier,
            claim: opened.claim,
            removals: Recurring::default(),
            failed_removals: Recurring::default(),
            tails: ScratchPool::new(format.tail_bytes(), 2 * depth),
            blocks: ScratchPool::new(format.block_bytes(), depth.min(KEPT_SCRATCH / format.block_bytes().max(1))),
            root,
            config,
            io,
        });
        let sweep = Sweep::default();
        if !files.config.read_only {
            sweep.start(&files.root);
        }
        Ok(Self { files, sweep })
    }
}

/// Compares the namespace's `config.json` below the directory at `root` with `namespace`, and writes it where it is missing
/// and `read_only` is not set: for stores that keep blocks elsewhere below the same root.
///
/// # Errors
/// `IdentityMismatch` when the namespace was written under another identity; the system's.
pub(in crate::store) fn settle_config(
    root: &Path,
    namespace: &Namespace,
    read_only: bool,
    file_mode: Mode,
    dir_mode: Mode,
) -> Result<()> {
    let root = Root::open(root)?;
    let settle = || -> Result<()> {
        if read_only {
            return open_for_reading(&root, namespace).map(drop);
        }
        let base = Arc::new(root.make_dir(namespace.base_dir(), dir_mode)?);
        let publishing = root.try_out(&base)?.publishing;
        config_json::settle(&base, namespace, publishing, file_mode, dir_mode)
    };
    settle().map_err(|e| e.with("root", root.path().display()).with("namespace", namespace.base_dir()))
}

/// Adds where it was, and what helps.
fn explained(error: Error, root: &Root, namespace: &Namespace, config: &FilesConfig) -> Error {
    let hint = error.kind() == ErrorKind::Permission && !config.read_only;
    let error = match error.kind() {
        // No block is missing here: the place vanishes while it is opened, or is none (as below /proc).
        ErrorKind::Missing => Error::new(ErrorKind::Unavailable, error.message()).with_source(error),
        _ => error,
    };
    let error = error.with("root", root.path().display()).with("namespace", namespace.base_dir());
    if hint { error.with("hint", "a root that can't be written can be opened with read_only=True") } else { error }
}

struct Opened {
    publishing: Publishing,
    direct: DirectIo,
    claim: Claim,
}

fn open_for_reading(root: &Root, namespace: &Namespace) -> Result<Opened> {
    match root.open_dir(namespace.base_dir()) {
        Ok(base) => {
            config_json::compare(&base, namespace)?;
        }
        // Nothing was ever stored; every lookup is a miss until somebody does.
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(Error::from_io("opening the namespace", errno.into())),
    }
    Ok(Opened { publishing: Publishing::LinkProc, direct: root.direct_io_unasked(), claim: Claim::default() })
}

fn open_for_storing(root: &Root, namespace: &Namespace, config: &FilesConfig) -> Result<Opened> {
    let (file_mode, dir_mode) = (Mode::from_raw_mode(config.file_mode), Mode::from_raw_mode(config.dir_mode));
    let base = Arc::new(root.make_dir(namespace.base_dir(), dir_mode)?);
    let Abilities { publishing, direct_io, .. } = root.try_out(&base)?;
    let publishing = config.publishing.unwrap_or(publishing);
    config_json::settle(&base, namespace, publishing, file_mode, dir_mode)?;
    let rank = namespace.blocks_dir().strip_prefix(namespace.base_dir()).unwrap_or_default();
    let claim = Claim::take(&base, &format!("lock{rank}"), config.exclusive, file_mode)?;
    let blocks = root.make_dir(namespace.blocks_dir(), dir_mode)?;
    if config.durability == Durability::Full {
        let flushed = root.flush().and_then(|()| flush_dir(&base, "."));
        flushed.map_err(|e| Error::from_io("flushing the root directory", e.into()))?;
    }
    for dir in [&base as &OwnedFd, &blocks] {
        match temporary::remove_stale(dir, config.stale_after) {
            Ok(0) => {}
            Ok(n) => log::info!("removed {n} unfinished files whose writers are gone from {}", root.path().display()),
            Err(errno) => log::warn!("unfinished files in {} can't be listed: {errno}", root.path().display()),
        }
    }
    Ok(Opened { publishing, direct: direct_io, claim })
}

fn choose_direct_io(config: &FilesConfig, found: DirectIo) -> Result<DirectIo> {
    match (config.direct_io, found.alignment()) {
        (config::DirectIo::Off, _) => Ok(DirectIo::off()),
        (config::DirectIo::On, None) => Err(Error::new(
            ErrorKind::Config,
            "direct_io=\"on\": the root's file system has none; give \"auto\" or \"off\"",
        )),
        (config::DirectIo::On, Some(align)) if !config.format.block_bytes().is_multiple_of(align) => Err(Error::new(
            ErrorKind::Config,
            format!(
                "direct_io=\"on\": blocks of {} bytes are no multiple of {align}; give \"auto\" or \"off\"",
                config.format.block_bytes()
            ),
        )),
        (config::DirectIo::On | config::DirectIo::Auto, _) => Ok(found),
    }
}
