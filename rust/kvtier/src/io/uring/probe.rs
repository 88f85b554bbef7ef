//! Whether this process may use `io_uring`, found out by using it: kernels of any version are built, configured and
//! sandboxed in ways that no version number tells.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// Instructions that the engine uses.
const INSTRUCTIONS: [u8; 6] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel2::CODE,
];

/// Whether a ring can be had here, by making one and sending an instruction through it.
///
/// # Errors
/// `Unavailable`, with what is in the way: the kernel, a sandbox, a setting.
pub fn availability() -> Result<()> {
    make(2).map(drop)
}

/// A ring with room for `entries` instructions, that has shown to work. It belongs to the calling thread.
pub(super) fn make(entries: u32) -> Result<IoUring> {
    let mut ring = set_up(entries).map_err(|e| refused("io_uring_setup", e))?;
    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known).map_err(|e| refused("io_uring_register", e))?;
    if !INSTRUCTIONS.iter().all(|code| known.is_supported(*code)) {
        return Err(unavailable("the kernel's io_uring lacks instructions that kvtier uses".into()));
    }
    // SAFETY: the instruction does nothing and refers to no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(|_| unavailable("io_uring gave a ring without room".into()))?;
    loop {
        match ring.submit_and_wait(1) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(refused("io_uring_enter", e)),
            Ok(_) if ring.completion().next().is_some() => return Ok(ring),
            Ok(_) => {}
        }
    }
}

/// Asks for the cheapest way of completing first: at the next wait of the one thread that uses the ring, without
/// interrupting it. Older kernels know less.
fn set_up(entries: u32) -> io::Result<IoUring> {
    let made = IoUring::builder().dontfork().setup_single_issuer().setup_defer_taskrun().build(entries);
    match made {
        Err(e) if is(&e, Errno::INVAL) => {}
        made => return made,
    }
    match IoUring::builder().dontfork().setup_coop_taskrun().build(entries) {
        Err(e) if is(&e, Errno::INVAL) => IoUring::builder().dontfork().build(entries),
        made => made,
    }
}

fn refused(call: &str, error: io::Error) -> Error {
    let why = if is(&error, Errno::NOSYS) {
        "the kernel is built without it, or a sandbox hides it"
    } else if is(&error, Errno::PERM) || is(&error, Errno::ACCESS) {
        forbidden_by()
    } else if is(&error, Errno::NOMEM) {
        "the limit of locked memory (ulimit -l) is too low for a kernel of this age"
    } else if is(&error, Errno::MFILE) || is(&error, Errno::NFILE) {
        "too many files are open"
    } else {
        "the kernel refuses it"
    };
    unavailable(format!("{call} failed: {why}: {error}")).with_source(error)
}

/// What forbids a ring to a process, as far as it can see.
fn forbidden_by() -> &'static str {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    match read("/proc/sys/kernel/io_uring_disabled").trim() {
        "2" => "the sysctl kernel.io_uring_disabled is 2, which forbids it to everybody",
        "1" => "the sysctl kernel.io_uring_disabled is 1, which allows it to kernel.io_uring_group only",
        _ if read("/proc/self/status").lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])) => {
            "a seccomp filter forbids it, as the default profiles of container runtimes do"
        }
        _ => "a security policy forbids it",
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}
