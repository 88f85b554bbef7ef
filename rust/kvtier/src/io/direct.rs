//! When transfers bypass the page cache.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;

use super::{Completion, FileSystem, IoEngine, Transfer, Transferred};
use crate::buffer::{IoMemory, PAGE};

/// Whether and with which alignment one root takes direct IO.
#[derive(Debug)]
pub struct DirectIo {
    place: String,
    align: usize,
    usable: AtomicBool,
}

impl DirectIo {
    /// No direct IO.
    pub fn off() -> Self {
        Self { place: String::new(), align: PAGE, usable: AtomicBool::new(false) }
    }

    /// What the file system says about `file`, a regular file or the directory of some; `place` names it in the log.
    pub fn of(file: impl AsFd, file_system: FileSystem, place: String) -> Self {
        let align = if file_system.may_bypass_cache() { stated_alignment(file) } else { None };
        Self { place, align: align.unwrap_or(PAGE), usable: AtomicBool::new(align.is_some()) }
    }

    /// The alignment in bytes that addresses, lengths and offsets need; `None` when direct IO is off.
    pub fn alignment(&self) -> Option<usize> {
        self.usable.load(Ordering::Relaxed).then_some(self.align)
    }

    /// Whether a transfer of `memory` from an aligned offset can be direct.
    pub fn fits(&self, memory: &IoMemory) -> bool {
        self.alignment().is_some_and(|align| memory.is_aligned_to(align))
    }

    /// Submits a transfer that fits, on a file opened with `O_DIRECT`. If the file system refuses it all the same, it
    /// goes on through the page cache, and direct IO is off from then on.
    pub fn submit(self: &Arc<Self>, engine: &Arc<dyn IoEngine>, transfer: Transfer, done: Completion) {
        let Transfer { offset, direction, ref file, .. } = transfer;
        let (this, again, file) = (Arc::clone(self), Arc::clone(engine), Arc::clone(file));
        let is_brief = done.is_brief;
        let judge = move |ended: Transferred| {
            let refused = ended.result.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::INVAL.raw_os_error()));
            // After a short transfer the rest may not fit any more, which is not the file system's fault.
            let lied = refused && ended.memory.done_bytes() == 0;
            if refused && bypass_no_more(&file).is_ok() {
                if lied {
                    this.turn_off();
                }
                again.submit(Transfer { file, offset, direction, memory: ended.memory }, done);
            } else {
                done.call(ended);
            }
        };
        engine.submit(transfer, Completion { run: Box::new(judge), is_brief });
    }

    /// The file system has refused direct IO that it had promised.
    pub fn turn_off(&self) {
        if self.usable.swap(false, Ordering::Relaxed) {
            log::warn!("{} refuses direct IO in spite of what it says; going through the page cache", self.place);
        }
    }
}

/// The alignment that suits memory and offsets alike.
fn stated_alignment(file: impl AsFd) -> Option<usize> {
    match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let align = found.stx_dio_mem_align.max(found.stx_dio_offset_align) as usize;
            (found.stx_dio_offset_align != 0 && align.is_power_of_two()).then_some(align)
        }
        // Kernels before 6.1 and some file systems don't say.
        _ => Some(PAGE),
    }
}

fn bypass_no_more(file: &File) -> rustix::io::Result<()> {
    fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::buffer::{Region, ScratchPool};
    use crate::error::Result;
    use crate::io::{Direction, Task, ThreadEngine};

    /// Refuses every transfer on a file with `O_DIRECT`, as some file systems do at the first real one.
    struct Liar(Arc<ThreadEngine>);

    impl IoEngine for Liar {
        fn name(&self) -> &'static str {
            "liar"
        }
        fn depth(&self) -> usize {
            1
        }
        fn spawn(&self, task: Task) {
            self.0.spawn(task);
        }
        fn submit(&self, transfer: Transfer, done: Completion) {
            if fcntl_getfl(&transfer.file).unwrap().contains(OFlags::DIRECT) {
                done.call(Transferred { memory: transfer.memory, result: Err(Errno::INVAL.into()) });
            } else {
                self.0.submit(transfer, done);
            }
        }
        fn register(&self, _rows: &Arc<Region>) -> Result<()> {
            Ok(())
        }
        fn stop(&self, timeout: Duration) -> usize {
            self.0.stop(timeout)
        }
    }

    fn page() -> IoMemory {
        IoMemory::scratch(ScratchPool::new(PAGE, 0).take().unwrap(), PAGE)
    }

    #[test]
    fn a_file_system_that_lies_is_believed_no_more() {
        let engine: Arc<dyn IoEngine> = Arc::new(Liar(ThreadEngine::start("test-io", 1).unwrap()));
        let file = Arc::new(tempfile::tempfile().unwrap());
        fcntl_setfl(&file, OFlags::DIRECT).unwrap();
        let direct = Arc::new(DirectIo { place: "/lies".into(), align: PAGE, usable: AtomicBool::new(true) });
        assert!(direct.fits(&page()));
        let (send, receive) = mpsc::channel();
        let transfer = Transfer { file: Arc::clone(&file), offset: 0, direction: Direction::Write, memory: page() };
        direct.submit(&engine, transfer, Completion::new(move |t| send.send(t).unwrap()));
        let ended = receive.recv_timeout(Duration::from_secs(20)).unwrap();
        ended.result.unwrap();
        assert_eq!((ended.memory.done_bytes(), file.metadata().unwrap().len()), (PAGE, PAGE as u64));
        assert!(!direct.fits(&page()) && direct.alignment().is_none());
    }

    #[test]
    fn only_aligned_memory_fits() {
        let direct = DirectIo { place: String::new(), align: 512, usable: AtomicBool::new(true) };
        let scratch = |len| IoMemory::scratch(ScratchPool::new(PAGE, 0).take().unwrap(), len);
        assert!(direct.fits(&scratch(1024)));
        assert!(!direct.fits(&scratch(1000)));
        assert!(!DirectIo::off().fits(&scratch(1024)));
    }
}
