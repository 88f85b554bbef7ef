use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use rustix::io::Errno;

use super::super::tests::{PATIENCE, begin, bytes_of, ring, scratch_of};
use super::super::{Direction, Transferred};
use super::*;
use crate::buffer::{HostRows, IoMemory, RowLease};

/// A file from which reads don't end before something is written to the other.
fn slow_file() -> (Arc<File>, File) {
    let (read, write) = std::io::pipe().unwrap();
    (Arc::new(OwnedFd::from(read).into()), OwnedFd::from(write).into())
}

fn wait_until(what: impl Fn() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < give_up);
        thread::sleep(Duration::from_millis(1));
    }
}

fn errno_of(ended: &Transferred) -> Option<Errno> {
    ended.result.as_ref().err().and_then(Errno::from_io_error)
}

#[test]
fn stopping_waits_for_what_is_under_way() {
    let Some(engine) = ring(1, 4) else { return };
    let (slow, mut other_end) = slow_file();
    let read = begin(&*engine, &slow, 0, Direction::Read, scratch_of(&[0; 5]));
    wait_until(|| engine.rings[0].is_empty());
    let stopping = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || engine.stop(PATIENCE))
    };
    // Either it is stopped by now or soon will be; what arrives then is the transfer's all the same.
    thread::sleep(Duration::from_millis(50));
    other_end.write_all(b"bytes").unwrap();
    assert_eq!(bytes_of(read.recv_timeout(PATIENCE).unwrap()), b"bytes");
    assert_eq!(stopping.join().unwrap(), 0);
}

#[test]
fn what_outlasts_a_stop_keeps_its_memory_until_the_kernel_lets_go() {
    let Some(engine) = ring(1, 4) else { return };
    let (slow, _other_end) = slow_file();
    let rows = HostRows::new(1, 8).unwrap().region();
    let held = Arc::downgrade(&rows);
    let access = RowLease::unbounded(&rows, 0).unwrap().enter().unwrap();
    let read = begin(&*engine, &slow, 0, Direction::Read, IoMemory::target(access).unwrap());
    drop(rows);
    assert!(read.recv_timeout(Duration::from_millis(50)).is_err(), "nothing has arrived");
    assert!(held.upgrade().is_some(), "the ring holds the row");
    engine.stop(Duration::from_millis(20));
    let ended = read.recv_timeout(PATIENCE).unwrap();
    assert_eq!(errno_of(&ended), Some(Errno::CANCELED));
    assert!(held.upgrade().is_some(), "it came back with the transfer");
    drop(ended);
    assert!(held.upgrade().is_none());
    assert_eq!(engine.stop(PATIENCE), 0);
}

#[test]
fn dropping_the_engine_ends_what_is_under_way() {
    let Some(engine) = ring(2, 4) else { return };
    let mailbox = Arc::downgrade(&engine.rings[0]);
    let (slow, _other_end) = slow_file();
    let reads: Vec<_> = (0..10).map(|_| begin(&*engine, &slow, 0, Direction::Read, scratch_of(&[0; 5]))).collect();
    drop(engine);
    for read in reads {
        assert_eq!(errno_of(&read.recv_timeout(PATIENCE).unwrap()), Some(Errno::CANCELED));
    }
    wait_until(|| mailbox.upgrade().is_none());
}

#[test]
fn a_slow_transfer_holds_up_no_other() {
    let Some(engine) = ring(1, 4) else { return };
    let (slow, mut other_end) = slow_file();
    let file = Arc::new(tempfile::tempfile().unwrap());
    let waiting: Vec<_> = (0..3).map(|_| begin(&*engine, &slow, 0, Direction::Read, scratch_of(&[0; 1]))).collect();
    for n in 0..100 {
        let write = begin(&*engine, &file, n, Direction::Write, scratch_of(b"x"));
        assert!(write.recv_timeout(PATIENCE).unwrap().result.is_ok());
    }
    other_end.write_all(b"abc").unwrap();
    let mut read: Vec<_> = waiting.into_iter().flat_map(|r| bytes_of(r.recv_timeout(PATIENCE).unwrap())).collect();
    read.sort_unstable();
    assert_eq!(read, b"abc");
}

/// Completes short by what is in the pipe, and goes on until the end.
#[test]
fn short_transfers_go_on() {
    let Some(engine) = ring(1, 4) else { return };
    let (slow, mut other_end) = slow_file();
    let read = begin(&*engine, &slow, 0, Direction::Read, scratch_of(&[0; 6]));
    for part in [b"ab", b"cd", b"ef"] {
        assert!(read.recv_timeout(Duration::from_millis(20)).is_err());
        other_end.write_all(part).unwrap();
    }
    assert_eq!(bytes_of(read.recv_timeout(PATIENCE).unwrap()), b"abcdef");
    let read = begin(&*engine, &slow, 0, Direction::Read, scratch_of(&[0; 6]));
    other_end.write_all(b"ab").unwrap();
    drop(other_end);
    assert_eq!(bytes_of(read.recv_timeout(PATIENCE).unwrap()), b"ab", "up to the end");
}

/// Work that brings as much more as one thread can do meanwhile.
fn busy(engine: &Arc<UringEngine>, left: u32, end: Box<dyn FnOnce() + Send>) {
    if left == 0 {
        return end();
    }
    let next = Arc::clone(engine);
    engine.spawn_brief(Box::new(move || busy(&next, left - 1, end)));
}

/// Nobody is woken for it, and nothing else is held up by it.
#[test]
fn brief_work_is_done_by_the_thread_of_the_ring_between_transfers() {
    let Some(engine) = ring(1, 4) else { return };
    let (send, receive) = mpsc::channel();
    let file = Arc::new(tempfile::tempfile().unwrap());
    let own = Arc::clone(&engine);
    let name = || thread::current().name().map(str::to_owned);
    engine.spawn_brief(Box::new(move || {
        let again = Arc::clone(&own);
        let transfer = Transfer { file, offset: 0, direction: Direction::Write, memory: scratch_of(b"x") };
        let first = send.clone();
        own.submit(transfer, Completion::brief(move |_| first.send(("the transfer", name())).unwrap()));
        busy(&again, 100_000, Box::new(move || send.send(("the tasks", name())).unwrap()));
    }));
    let ring = Some("test-ring-0".to_owned());
    assert_eq!(receive.recv_timeout(PATIENCE), Ok(("the transfer", ring.clone())));
    assert_eq!(receive.recv_timeout(PATIENCE), Ok(("the tasks", ring)));
}

#[test]
fn brief_tasks_that_wait_are_dropped_by_a_stop() {
    let Some(engine) = ring(1, 4) else { return };
    let (started, running) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    engine.spawn_brief(Box::new(move || {
        started.send(()).unwrap();
        let _ = released.recv();
    }));
    running.recv_timeout(PATIENCE).unwrap();
    let (token, unrun) = mpsc::channel::<()>();
    engine.spawn_brief(Box::new(move || drop(token)));
    assert_eq!(engine.stop(Duration::from_millis(20)), 1, "the ring's thread is stuck");
    assert_eq!(unrun.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    drop(release);
    assert_eq!(engine.stop(PATIENCE), 0);
}

#[test]
fn threads_take_over_from_a_ring_that_fails() {
    let Some(engine) = ring(2, 4) else { return };
    let file = Arc::new(tempfile::tempfile().unwrap());
    let write = |bytes: &[u8]| begin(&*engine, &file, 0, Direction::Write, scratch_of(bytes)).recv_timeout(PATIENCE);
    write(b"by the ring").unwrap().result.unwrap();
    let (slow, _other_end) = slow_file();
    let stuck = begin(&*engine, &slow, 0, Direction::Read, scratch_of(&[0; 5]));
    wait_until(|| engine.rings[0].is_empty());

    // SAFETY: the ring's own descriptor, which the engine's thread goes on to use as the number of something that is no
    // ring. Whoever closes it last closes the file that it is replaced by.
    let mut ring =
        std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(engine.rings[0].ring.load(Ordering::Relaxed)) });
    rustix::io::dup2(File::open("/dev/null").unwrap(), &mut ring).unwrap();

    wait_until(|| {
        // The ring's thread notices when it is sent something; that may be lost, and is told to be.
        if let Ok(ended) = write(b"by whom") {
            ended.result.unwrap();
        }
        engine.rings[0].has_ended()
    });
    // The kernel was not asked any more, so the memory is given up rather than freed.
    assert_eq!(stuck.recv_timeout(PATIENCE).unwrap_err(), mpsc::RecvTimeoutError::Disconnected);
    write(b"by a thread").unwrap().result.unwrap();
    assert_eq!(engine.stop(PATIENCE), 0);
    assert_eq!(errno_of(&write(b"too late").unwrap()), Some(Errno::CANCELED));
}
