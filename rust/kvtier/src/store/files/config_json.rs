//! `config.json` on disk: written by whoever comes first, compared by everybody else.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fdatasync, openat};
use rustix::io::Errno;

use super::publish::{Publishing, Unpublished};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{CONFIG_FILE_NAME, ConfigCheck, Namespace, NamespaceKind};

/// For how long a file that the engine's own tier may just be writing is read again.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// More than any identity needs; a longer file is something else.
const MOST_BYTES: u64 = 16 << 20;

/// Compares the `config.json` in `dir` with `namespace`; a namespace without one is nobody's yet.
///
/// # Errors
/// `IdentityMismatch` naming each field that differs, or saying that the file can't be understood. In the `vllm` kind
/// the latter is a warning, since the engine's own tier doesn't write the file at once.
pub(super) fn compare(dir: &OwnedFd, namespace: &Namespace) -> Result<Found> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let text = match read(dir) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(Found::Nothing),
            Err(e) => return Err(Error::from_io("reading config.json", e)),
        };
        match namespace.check_config(&text) {
            ConfigCheck::Same => return Ok(Found::Same),
            ConfigCheck::Different(error) => return Err(error),
            ConfigCheck::Unreadable(error) if namespace.kind() == NamespaceKind::Kvtier => {
                let message = format!("{}; nothing is known about the blocks beside it", error.message());
                return Err(Error::new(ErrorKind::IdentityMismatch, message).with_source(error));
            }
            ConfigCheck::Unreadable(_) if Instant::now() < give_up => thread::sleep(PAUSE),
            ConfigCheck::Unreadable(error) => {
                log::warn!("{}: {error}; its blocks are used all the same", namespace.base_dir());
                return Ok(Found::Same);
            }
        }
    }
}

/// What [`compare`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// This namespace's.
    Same,
    /// No file.
    Nothing,
}

/// As [`compare`], and writes the file if there is none: complete or not at all.
pub(super) fn settle(
    dir: &Arc<OwnedFd>,
    namespace: &Namespace,
    way: Publishing,
    file_mode: Mode,
    dir_mode: Mode,
) -> Result<()> {
    while compare(dir, namespace)? == Found::Nothing {
        match write(dir, &namespace.config_text(), way, file_mode, dir_mode) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::from_io("writing config.json", e)),
        }
    }
    Ok(())
}

/// The text of the `config.json` in `dir`, if there is one.
pub(super) fn read(dir: &OwnedFd) -> std::io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, CONFIG_FILE_NAME, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(Some(text))
}

fn write(dir: &Arc<OwnedFd>, text: &str, way: Publishing, file_mode: Mode, dir_mode: Mode) -> std::io::Result<()> {
    let mut file = Unpublished::create(dir, way, OFlags::WRONLY, file_mode, dir_mode)?;
    file.file().as_ref().write_all(text.as_bytes())?;
    // Once in the namespace's life: a file that is empty after a power loss would lock everybody out.
    fdatasync(file.file())?;
    Ok(file.publish(CONFIG_FILE_NAME)?)
}
