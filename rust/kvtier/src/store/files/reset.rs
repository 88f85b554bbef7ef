//! Taking a whole namespace away at once, and deleting it in the background.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Mode, mkdirat, renameat};
use rustix::io::Errno;

use super::root::Root;
use super::{Files, temporary};
use crate::error::{Error, ErrorKind, Result};

/// The directory in a root for namespaces that were reset. Whatever lies there is nobody's any more.
pub(super) const TRASH: &str = ".kvtier-trash";

impl Files {
    /// Renames the namespace's directory away, so that every process finds an empty one from now on.
    pub(super) fn set_aside(&self) -> Result<()> {
        if self.config.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the tier was opened read-only"));
        }
        let failed = |errno: Errno| {
            Error::from_io("setting the namespace aside", errno.into())
                .with("path", self.root.path().join(&self.blocks_dir).display())
        };
        match mkdirat(&self.root, TRASH, Mode::from_raw_mode(self.config.dir_mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let aside = format!("{TRASH}/{}", temporary::unique_name());
        match renameat(&self.root, self.blocks_dir.as_str(), &self.root, aside) {
            // Nothing was ever stored.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

/// The deletion of what resets have set aside: by this process, or by earlier ones that didn't get to it.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    stop: Arc<AtomicBool>,
}

impl Sweep {
    /// Begins, on a thread of its own, unless there is nothing to delete.
    pub(super) fn start(&self, root: &Root) {
        let trash = root.path().join(TRASH);
        if !trash.is_dir() {
            return;
        }
        let stop = Arc::clone(&self.stop);
        let started = thread::Builder::new().name("kvtier-sweep".into()).spawn(move || sweep(&trash, &stop));
        if let Err(e) = started {
            log::warn!("what was reset can't be deleted now, and will be when the root is opened again: {e}");
        }
    }

    /// Lets it end after the directory that it is at; the next store to open the root goes on.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Deletes the namespaces in `trash` directory by directory, so that it can be stopped soon.
fn sweep(trash: &PathBuf, stop: &AtomicBool) {
    let listed = |dir: &PathBuf| fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    for namespace in listed(trash) {
        for entry in listed(&namespace) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            // Others may delete the same; what they leave or what is out of reach stays for the next time.
            let _ = fs::remove_dir_all(&entry).or_else(|_| fs::remove_file(&entry));
        }
        let _ = fs::remove_dir(&namespace);
    }
}
