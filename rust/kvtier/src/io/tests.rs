//! One suite for every engine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::buffer::{HostRows, RowLease, RowPart, ScratchPool};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn scratch_of(bytes: &[u8]) -> IoMemory {
    let mut scratch = ScratchPool::new(bytes.len(), 0).take().unwrap();
    scratch[..bytes.len()].copy_from_slice(bytes);
    IoMemory::scratch(scratch, bytes.len())
}

pub(super) fn bytes_of(ended: Transferred) -> Vec<u8> {
    ended.result.unwrap();
    let moved = ended.memory.done_bytes();
    ended.memory.into_parts().1.unwrap()[..moved].to_vec()
}

/// Submits a transfer; its end comes out of the receiver.
pub(super) fn begin(
    engine: &dyn IoEngine,
    file: &Arc<File>,
    offset: u64,
    direction: Direction,
    memory: IoMemory,
) -> mpsc::Receiver<Transferred> {
    let (send, receive) = mpsc::channel();
    let transfer = Transfer { file: Arc::clone(file), offset, direction, memory };
    engine.submit(transfer, Completion::new(move |t| send.send(t).unwrap()));
    receive
}

fn submit(engine: &dyn IoEngine, file: &Arc<File>, direction: Direction, memory: IoMemory) -> Transferred {
    begin(engine, file, 0, direction, memory).recv_timeout(PATIENCE).unwrap()
}

fn os_code(ended: Transferred) -> Option<Errno> {
    Errno::from_io_error(&ended.result.unwrap_err())
}

/// A ring with as many threads beside it; `None`, and a line that says so, where no ring can be had.
pub(super) fn ring(threads: usize, depth: usize) -> Option<Arc<UringEngine>> {
    rings(threads, 1, depth)
}

/// As [`ring`], but several.
pub(super) fn rings(threads: usize, rings: usize, depth: usize) -> Option<Arc<UringEngine>> {
    let tasks = ThreadEngine::start("test-io", threads).unwrap();
    match UringEngine::start("test-ring", tasks, rings, depth) {
        Ok(engine) => Some(engine),
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
            {
                eprintln!("skipped: {error}");
            }
            None
        }
    }
}

fn threads() -> Arc<dyn IoEngine> {
    ThreadEngine::start("test-io", 2).unwrap()
}

fn on_rings(count: usize, depth: usize, test: fn(&Arc<dyn IoEngine>)) {
    if let Some(rings) = rings(2, count, depth) {
        let rings: Arc<dyn IoEngine> = rings;
        test(&rings);
    }
}

/// Makes one `#[test]` per engine out of each function of the suite.
macro_rules! engines {
    ($($test:ident),+ $(,)?) => {
        mod threads {
            $(#[test] fn $test() { super::$test(&super::threads()); })+
        }
        mod uring {
            $(#[test] fn $test() { super::on_rings(1, 8, super::$test); })+
        }
        mod three_rings {
            $(#[test] fn $test() { super::on_rings(3, 8, super::$test); })+
        }
        mod uring_with_one_slot {
            $(#[test] fn $test() { super::on_rings(1, 1, super::$test); })+
        }
    };
}

engines!(
    moves_more_segments_than_one_call_takes,
    reading_past_the_end_is_short_and_no_error,
    nothing_to_move_is_no_error,
    memory_that_is_written_from_is_never_filled,
    errors_keep_their_code,
    files_open_for_non_blocking_use_are_fine,
    many_transfers_at_once_all_come_right,
    a_completion_may_submit_and_block,
    brief_work_may_submit_and_bring_more,
    a_panic_costs_its_task_alone,
    stopping_drops_what_waits_and_leaves_what_is_stuck,
    the_last_owner_may_be_a_completion,
    stopping_at_any_moment_answers_each_transfer_once,
);

fn moves_more_segments_than_one_call_takes(engine: &Arc<dyn IoEngine>) {
    // 3,000 parts of 3 bytes: above the 1,024 segments that the kernel takes at once.
    let rows = HostRows::new(1, 9000).unwrap();
    let parts = (0..3000).map(|i| RowPart {
        // SAFETY: 3 * i + 3 <= 9000, the length of the rows.
        base: unsafe { rows.base().add(3 * i) },
        row_bytes: 3,
        stride: 3,
    });
    // SAFETY: the parts lie within the rows, which the clone keeps mapped; nothing else touches them.
    let region = unsafe { Region::from_parts(parts.collect(), 1, true, Box::new(rows.clone())) }.unwrap();
    let payload: Vec<u8> = (0..9000_u32).map(|i| (i / 3 % 256) as u8).collect();
    let mut access = RowLease::unbounded(&region, 0).unwrap().enter().unwrap();
    access.copy_from(&payload).unwrap();
    let lease = access.leave().unwrap();

    let file = Arc::new(tempfile::tempfile().unwrap());
    let written = submit(&**engine, &file, Direction::Write, IoMemory::source(lease));
    written.result.unwrap();
    assert_eq!(written.memory.done_bytes(), 9000);
    let mut found = vec![0; 9000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == payload);

    let access = RowLease::unbounded(&region, 0).unwrap().enter().unwrap();
    let read = submit(&**engine, &file, Direction::Read, IoMemory::target(access).unwrap());
    read.result.unwrap();
    let (access, _) = read.memory.into_parts();
    assert!(access.unwrap().segments().collect::<Vec<_>>().concat() == payload);
}

fn reading_past_the_end_is_short_and_no_error(engine: &Arc<dyn IoEngine>) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    submit(&**engine, &file, Direction::Write, scratch_of(b"12345")).result.unwrap();
    let read = submit(&**engine, &file, Direction::Read, scratch_of(&[0; 8]));
    assert_eq!(bytes_of(read), b"12345");
    let beyond = begin(&**engine, &file, 4096, Direction::Read, scratch_of(&[0; 8]));
    assert_eq!(bytes_of(beyond.recv_timeout(PATIENCE).unwrap()), b"");
}

fn nothing_to_move_is_no_error(engine: &Arc<dyn IoEngine>) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    for direction in [Direction::Write, Direction::Read] {
        assert_eq!(bytes_of(submit(&**engine, &file, direction, scratch_of(b""))), b"");
    }
}

fn memory_that_is_written_from_is_never_filled(engine: &Arc<dyn IoEngine>) {
    let rows = HostRows::new(1, 100).unwrap().region();
    let file = Arc::new(tempfile::tempfile().unwrap());
    file.write_all_at(&[1; 100], 0).unwrap();
    let source = IoMemory::source(RowLease::unbounded(&rows, 0).unwrap());
    let read = submit(&**engine, &file, Direction::Read, source);
    assert_eq!((read.result.is_ok(), read.memory.done_bytes()), (true, 0));
    let access = RowLease::unbounded(&rows, 0).unwrap().enter().unwrap();
    assert!(access.segments().flatten().all(|byte| *byte == 0));
}

fn errors_keep_their_code(engine: &Arc<dyn IoEngine>) {
    let read_only = Arc::new(File::open("/proc/self/exe").unwrap());
    let failed = submit(&**engine, &read_only, Direction::Write, scratch_of(b"x"));
    assert_eq!(os_code(failed), Some(Errno::BADF));
    let directory = Arc::new(File::open("/").unwrap());
    let failed = submit(&**engine, &directory, Direction::Read, scratch_of(b"x"));
    assert_eq!(os_code(failed), Some(Errno::ISDIR));
}

fn files_open_for_non_blocking_use_are_fine(engine: &Arc<dyn IoEngine>) {
    use std::os::unix::fs::OpenOptionsExt;
    // Where the file system can't read in the background, the kernel has nobody to do it: /proc is such a one.
    for path in ["/proc/version", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = Arc::new(File::options().read(true).custom_flags(flags).open(path).unwrap());
        let read = submit(&**engine, &file, Direction::Read, scratch_of(&vec![0; 1 << 16]));
        assert!(bytes_of(read) == std::fs::read(path).unwrap(), "{path}");
    }
}

fn many_transfers_at_once_all_come_right(engine: &Arc<dyn IoEngine>) {
    const THREADS: usize = 4;
    const EACH: usize = 200;
    let file = Arc::new(tempfile::tempfile().unwrap());
    let content = |n: usize| vec![(n % 251) as u8; 100 + n % 7000];
    let place = |n: usize| (n * 8192) as u64;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                let numbers = || (0..EACH).map(|i| i * THREADS + thread);
                let writes: Vec<_> = numbers()
                    .map(|n| begin(&**engine, file, place(n), Direction::Write, scratch_of(&content(n))))
                    .collect();
                for (n, write) in numbers().zip(writes) {
                    let ended = write.recv_timeout(PATIENCE).unwrap();
                    ended.result.unwrap();
                    assert_eq!(ended.memory.left_bytes(), 0, "{n}");
                }
                let reads: Vec<_> = numbers()
                    .map(|n| begin(&**engine, file, place(n), Direction::Read, scratch_of(&vec![0; content(n).len()])))
                    .collect();
                for (n, read) in numbers().zip(reads) {
                    assert!(bytes_of(read.recv_timeout(PATIENCE).unwrap()) == content(n), "{n}");
                }
            });
        }
    });
    assert_eq!(engine.stop(PATIENCE), 0);
}

fn a_completion_may_submit_and_block(engine: &Arc<dyn IoEngine>) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let (send, receive) = mpsc::channel();
    let (again, target) = (Arc::clone(engine), Arc::clone(&file));
    let write = Transfer { file, offset: 0, direction: Direction::Write, memory: scratch_of(b"first") };
    engine.submit(
        write,
        Completion::new(move |ended| {
            ended.result.unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let read = Transfer { file: target, offset: 1, direction: Direction::Read, memory: scratch_of(&[0; 4]) };
            again.submit(read, Completion::new(move |ended| send.send(bytes_of(ended)).unwrap()));
        }),
    );
    assert_eq!(receive.recv_timeout(PATIENCE).unwrap(), b"irst");
}

fn brief_work_may_submit_and_bring_more(engine: &Arc<dyn IoEngine>) {
    const CHAINS: usize = 4;
    const LINKS: u64 = 200;
    /// Writes a byte and brings the next one along, until all are written.
    fn go_on(engine: &Arc<dyn IoEngine>, file: &Arc<File>, at: u64, end: mpsc::Sender<()>) {
        let (again, target) = (Arc::clone(engine), Arc::clone(file));
        let transfer = Transfer {
            file: Arc::clone(file),
            offset: at,
            direction: Direction::Write,
            memory: scratch_of(&[at as u8]),
        };
        let done = move |ended: Transferred| {
            ended.result.unwrap();
            if at + 1 == LINKS {
                return end.send(()).unwrap();
            }
            let next = Arc::clone(&again);
            again.spawn_brief(Box::new(move || go_on(&next, &target, at + 1, end)));
        };
        engine.submit(transfer, Completion::brief(done));
    }
    let (end, ended) = mpsc::channel();
    let files: Vec<_> = (0..CHAINS).map(|_| Arc::new(tempfile::tempfile().unwrap())).collect();
    for file in &files {
        let (engine, file, end) = (Arc::clone(engine), Arc::clone(file), end.clone());
        let first = Arc::clone(&engine);
        engine.spawn_brief(Box::new(move || go_on(&first, &file, 0, end)));
    }
    (0..CHAINS).for_each(|_| ended.recv_timeout(PATIENCE).unwrap());
    for file in files {
        let mut found = vec![0; LINKS as usize];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}

fn a_panic_costs_its_task_alone(engine: &Arc<dyn IoEngine>) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    for _ in 0..8 {
        engine.spawn(Box::new(|| std::panic::resume_unwind(Box::new("on purpose"))));
        let transfer =
            Transfer { file: Arc::clone(&file), offset: 0, direction: Direction::Write, memory: scratch_of(b"x") };
        engine.submit(transfer, Completion::new(|_| std::panic::resume_unwind(Box::new("on purpose"))));
        let transfer =
            Transfer { file: Arc::clone(&file), offset: 0, direction: Direction::Write, memory: scratch_of(b"x") };
        engine.submit(transfer, Completion::brief(|_| std::panic::resume_unwind(Box::new("on purpose"))));
        engine.spawn_brief(Box::new(|| std::panic::resume_unwind(Box::new("on purpose"))));
    }
    assert_eq!(bytes_of(submit(&**engine, &file, Direction::Read, scratch_of(&[0; 1]))).len(), 1);
    assert_eq!(engine.stop(PATIENCE), 0);
}

fn stopping_drops_what_waits_and_leaves_what_is_stuck(engine: &Arc<dyn IoEngine>) {
    let stuck = engine.threads();
    let (started, running) = mpsc::channel();
    let releases: Vec<_> = (0..stuck)
        .map(|_| {
            let (release, released) = mpsc::channel::<()>();
            let started = started.clone();
            engine.spawn(Box::new(move || {
                started.send(()).unwrap();
                let _ = released.recv();
            }));
            release
        })
        .collect();
    (0..stuck).for_each(|_| running.recv_timeout(PATIENCE).unwrap());

    let file = Arc::new(tempfile::tempfile().unwrap());
    let before = begin(&**engine, &file, 0, Direction::Write, scratch_of(b"perhaps written"));
    let (token, unrun) = mpsc::channel::<()>();
    engine.spawn(Box::new(move || drop(token)));
    assert_eq!(engine.stop(Duration::from_millis(50)), stuck, "the threads are stuck");
    // A ring had made it; threads have had no time.
    let before = before.try_recv().unwrap();
    assert!(before.result.is_ok() || os_code(before) == Some(Errno::CANCELED), "a waiting transfer is answered");
    assert!(unrun.try_recv().is_err_and(|e| e == mpsc::TryRecvError::Disconnected), "a waiting task is dropped");

    let late = Arc::new(());
    let held = Arc::clone(&late);
    engine.spawn(Box::new(move || drop(held)));
    assert_eq!(Arc::strong_count(&late), 1, "a task that comes later is dropped at once");
    let late = begin(&**engine, &file, 0, Direction::Write, scratch_of(b"never written"));
    assert_eq!(os_code(late.try_recv().unwrap()), Some(Errno::CANCELED), "a transfer that comes later is answered");

    drop(releases);
    assert_eq!(engine.stop(PATIENCE), 0, "stuck threads end by themselves");
}

/// One more of the same kind.
fn another(engine: &Arc<dyn IoEngine>) -> Arc<dyn IoEngine> {
    let tasks = ThreadEngine::start("test-io", 2).unwrap();
    match engine.name() {
        "uring" => UringEngine::start("test-ring", tasks, engine.brief_threads(), engine.depth()).unwrap(),
        _ => tasks,
    }
}

fn stopping_at_any_moment_answers_each_transfer_once(engine: &Arc<dyn IoEngine>) {
    const THREADS: usize = 3;
    const EACH: usize = 40;
    let pool = ScratchPool::new(8192, usize::MAX);
    for round in 0..30 {
        let engine = another(engine);
        let file = Arc::new(tempfile::tempfile().unwrap());
        let answers: Arc<Vec<AtomicUsize>> = Arc::new((0..THREADS * EACH).map(|_| AtomicUsize::new(0)).collect());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (engine, file, answers, pool) = (&engine, &file, &answers, &pool);
                scope.spawn(move || {
                    for n in (0..EACH).map(|i| i * THREADS + thread) {
                        let direction = if n % 4 == 3 { Direction::Read } else { Direction::Write };
                        let memory = IoMemory::scratch(pool.take().unwrap(), 8192);
                        let transfer = Transfer { file: Arc::clone(file), offset: n as u64 * 8192, direction, memory };
                        let answers = Arc::clone(answers);
                        let count = move |ended: Transferred| {
                            drop(ended.memory);
                            answers[n].fetch_add(1, Ordering::Relaxed);
                        };
                        engine.submit(transfer, Completion::new(count));
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(round * 50));
            engine.stop(Duration::from_micros(round * 20));
        });
        assert_eq!(engine.stop(PATIENCE), 0);
        let counts: Vec<_> = answers.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [1; THREADS * EACH], "round {round}");
    }
}

fn the_last_owner_may_be_a_completion(engine: &Arc<dyn IoEngine>) {
    let own = another(engine);
    let (last, owner) = mpsc::channel::<Arc<dyn IoEngine>>();
    let (send, receive) = mpsc::channel();
    let file = Arc::new(tempfile::tempfile().unwrap());
    let transfer = Transfer { file, offset: 0, direction: Direction::Write, memory: scratch_of(b"x") };
    own.submit(
        transfer,
        Completion::new(move |_| {
            drop(owner.recv().unwrap());
            send.send(()).unwrap();
        }),
    );
    last.send(own).unwrap();
    receive.recv_timeout(PATIENCE).unwrap();
}
