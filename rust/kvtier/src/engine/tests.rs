//! The engine against a store that does what it is told, and against a model.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;

use proptest::prelude::*;

mod known;
mod steps;

use super::*;
use crate::buffer::{HostRows, RowLease, RowPart};
use crate::index::PROBE_BATCH;
use crate::io::Task;
use crate::store::{Done, Loaded, Location, Probed, Stored};

const ROW: usize = 64;

/// What the store does with the next operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Fail(ErrorKind),
    Panic,
    Lose,
    /// Waits for [`Script::release`] without touching the row.
    Stall,
    /// Waits for [`Script::release`] while touching the row, as a read straight into it does.
    StallInside,
    /// Goes well, and is answered a moment later, on a thread of nobody's.
    Later,
}

/// A store in memory, on threads of its own, that follows a script.
struct Script {
    blocks: Mutex<HashMap<BlockKey, Vec<u8>>>,
    acts: Mutex<HashMap<BlockKey, VecDeque<Act>>>,
    probes: Mutex<Vec<usize>>,
    published_late: AtomicUsize,
    /// Whether some operation has come to where it stalls.
    stalled: AtomicBool,
    released: Mutex<bool>,
    release: Condvar,
    tasks: Mutex<Option<Sender<Task>>>,
    /// Who has given the store its tasks.
    spawned_by: Mutex<HashSet<ThreadId>>,
    exclusive: bool,
    /// Whether it has an index of its own.
    knows: AtomicBool,
    threads: usize,
}

impl Script {
    fn new(threads: usize, exclusive: bool) -> Arc<Self> {
        let (sender, receiver) = channel::<Task>();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let receiver: Arc<Mutex<Receiver<Task>>> = Arc::clone(&receiver);
            std::thread::spawn(move || {
                loop {
                    let task = receiver.lock().recv();
                    match task {
                        Ok(task) => {
                            let _ = catch_unwind(AssertUnwindSafe(task));
                        }
                        Err(_) => return,
                    }
                }
            });
        }
        Arc::new(Self {
            blocks: Mutex::default(),
            acts: Mutex::default(),
            probes: Mutex::default(),
            published_late: AtomicUsize::new(0),
            stalled: AtomicBool::new(false),
            released: Mutex::new(false),
            release: Condvar::new(),
            tasks: Mutex::new(Some(sender)),
            spawned_by: Mutex::default(),
            exclusive,
            knows: AtomicBool::new(false),
            threads,
        })
    }

    fn script(&self, n: u64, act: Act) {
        self.acts.lock().entry(key(n)).or_default().push_back(act);
    }

    fn release(&self) {
        *self.released.lock() = true;
        self.release.notify_all();
    }

    fn stall(&self) {
        self.stalled.store(true, Ordering::Release);
        let mut released = self.released.lock();
        while !*released {
            self.release.wait(&mut released);
        }
    }

    fn act(&self, key: BlockKey) -> Option<Act> {
        self.acts.lock().get_mut(&key)?.pop_front()
    }

    /// Does what the script says; `Err(None)` means that the answer is lost.
    fn follow(&self, act: Option<Act>, row: RowLease) -> Result<RowLease, Option<Error>> {
        match act {
            None | Some(Act::Later) => Ok(row),
            Some(Act::Fail(kind)) => Err(Some(Error::new(kind, "as scripted"))),
            Some(Act::Panic) => panic!("as scripted"),
            Some(Act::Lose) => Err(None),
            Some(Act::Stall) => {
                self.stall();
                Ok(row)
            }
            Some(Act::StallInside) => {
                let access = row.enter().map_err(Some)?;
                self.stall();
                access.leave().map_err(Some)
            }
        }
    }
}

impl Script {
    fn answer<A: Send + 'static>(act: Option<Act>, answer: Result<A, Option<Error>>, done: Done<A>) {
        let give = move || match answer {
            Ok(answer) => done.give(Ok(answer)),
            Err(Some(error)) => done.give(Err(error)),
            Err(None) => drop(done),
        };
        if act == Some(Act::Later) {
            std::thread::spawn(give);
        } else {
            give();
        }
    }
}

impl BlockStore for Script {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "script",
            place: "memory".into(),
            payload_bytes: ROW,
            concurrency: self.threads,
            threads: self.threads,
            turn: usize::MAX,
            io_engine: "threads",
            read_only: false,
            exclusive: self.exclusive,
            listed: false,
        }
    }

    fn spawn(&self, task: Task) {
        self.spawned_by.lock().insert(std::thread::current().id());
        if let Some(tasks) = &*self.tasks.lock() {
            let _ = tasks.send(task);
        }
    }

    fn store(&self, key: BlockKey, row: RowLease, done: Done<Stored>) {
        let act = self.act(key);
        let answer = self.follow(act, row).and_then(|row| {
            let access = row.enter().map_err(Some)?;
            let bytes = access.segments().collect::<Vec<_>>().concat();
            let row = access.leave().map_err(Some)?;
            if !row.is_open() {
                self.published_late.fetch_add(1, Ordering::Relaxed);
            }
            self.blocks.lock().insert(key, bytes);
            Ok(Stored { location: Location(1), bytes: ROW as u64 })
        });
        Self::answer(act, answer, done);
    }

    fn load(&self, key: BlockKey, row: RowLease, done: Done<Loaded>) {
        let act = self.act(key);
        let answer = self.follow(act, row).and_then(|row| {
            let block = self.blocks.lock().get(&key).cloned();
            let block = block.ok_or_else(|| Some(Error::new(ErrorKind::Missing, "no such block")))?;
            let mut access = row.enter().map_err(Some)?;
            access.copy_from(&block).map_err(Some)?;
            access.leave().map_err(Some)?;
            Ok(Loaded { bytes: ROW as u64 })
        });
        Self::answer(act, answer, done);
    }

    fn probe(&self, keys: Vec<BlockKey>, done: Done<Vec<Probed>>) {
        self.probes.lock().push(keys.len());
        let acts: Vec<_> = keys.iter().filter_map(|k| self.act(*k)).collect();
        if acts.contains(&Act::Stall) {
            self.stall();
        }
        let blocks = self.blocks.lock();
        let answer = keys
            .iter()
            .map(|k| if blocks.contains_key(k) { Probed::Present(Location(1)) } else { Probed::Absent })
            .collect();
        drop(blocks);
        Self::answer(acts.contains(&Act::Later).then_some(Act::Later), Ok(answer), done);
    }

    fn residency(&self) -> Option<Arc<dyn Residency>> {
        self.knows.load(Ordering::Relaxed).then(|| Arc::new(known::Own) as Arc<dyn Residency>)
    }

    fn scan(&self, found: &mut dyn FnMut(BlockKey, Location) -> bool) -> Result<()> {
        let keys: Vec<_> = self.blocks.lock().keys().copied().collect();
        keys.into_iter().all(|k| found(k, Location(1)));
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        self.blocks.lock().clear();
        Ok(())
    }

    fn close(&self, _timeout: Duration) -> usize {
        *self.tasks.lock() = None;
        0
    }
}

fn key(n: u64) -> BlockKey {
    BlockKey::from_parts(&n.to_be_bytes(), 0).unwrap()
}

fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockKey> {
    numbers.into_iter().map(key).collect()
}

struct Bench {
    store: Arc<Script>,
    rows: Arc<Region>,
    engine: Engine,
}

impl Bench {
    fn new(config: EngineConfig) -> Self {
        Self::over(Script::new(4, false), config)
    }

    fn over(store: Arc<Script>, config: EngineConfig) -> Self {
        let rows = HostRows::new(32, ROW).unwrap().region();
        let engine = Engine::start(Arc::clone(&store) as Arc<dyn BlockStore>, Arc::clone(&rows), config).unwrap();
        Self { store, rows, engine }
    }

    fn fill(&self, row: u32, byte: u8) {
        let mut access = RowLease::unbounded(&self.rows, row as usize).unwrap().enter().unwrap();
        access.copy_from(&[byte; ROW]).unwrap();
    }

    fn row(&self, row: u32) -> Vec<u8> {
        let access = RowLease::unbounded(&self.rows, row as usize).unwrap().enter().unwrap();
        access.segments().collect::<Vec<_>>().concat()
    }

    fn run(&self, kind: JobKind, job: u64, numbers: &[u64], rows: &[u32]) -> JobResult {
        self.engine.submit(kind, job, keys(numbers.iter().copied()), rows.to_vec()).unwrap();
        self.result(job)
    }

    fn result(&self, job: u64) -> JobResult {
        assert!(self.engine.wait(Some(job), Some(Duration::from_secs(20))).unwrap(), "job {job} has no result");
        let mut results = self.engine.poll().unwrap();
        assert_eq!(results.iter().map(|r| r.job_id).collect::<Vec<_>>(), [job]);
        results.remove(0)
    }

    /// Until the store works on an operation that stalls: nothing ends it before its time.
    fn wait_until_stalled(&self) {
        while !self.store.stalled.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert_eq!(self.engine.gauges().unwrap().inflight_ops, 1);
    }

    fn lookup(&self, n: u64, request: u64) -> Lookup {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match self.engine.lookup(&key(n), Some(RequestId(request))).unwrap() {
                Lookup::Retry if Instant::now() < until => std::thread::yield_now(),
                answer => return answer,
            }
        }
    }
}

fn failures(result: &JobResult) -> Vec<(usize, ErrorKind)> {
    result.failures.iter().map(|(i, e)| (*i, e.kind())).collect()
}

fn soon(timeout: u64) -> EngineConfig {
    let timeout = Duration::from_millis(timeout);
    EngineConfig { load_timeout: timeout, store_timeout: timeout, ..EngineConfig::default() }
}

#[test]
fn blocks_go_out_and_come_back() {
    let b = Bench::new(EngineConfig::default());
    (0..8).for_each(|row| b.fill(row, 10 + row as u8));
    let stored = b.run(JobKind::Store, 1, &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(stored.is_success());
    assert_eq!(stored.transfer_bytes, 8 * ROW as u64);
    let loaded = b.run(JobKind::Load, 1, &[7, 6, 5, 4], &[8, 9, 10, 11]);
    assert!(loaded.is_success());
    assert_eq!((8..12).map(|row| b.row(row)[0]).collect::<Vec<_>>(), [17, 16, 15, 14]);
    let again = b.run(JobKind::Store, 2, &[0], &[0]);
    assert_eq!((again.is_success(), again.transfer_bytes), (true, 0), "it is here already");
    let events = b.engine.take_events().unwrap();
    assert_eq!(events.len(), 9);
    assert!(events.iter().all(|e| matches!(e, Event::Stored(_))));
    assert!(b.run(JobKind::Load, 3, &[], &[]).is_success(), "a job without blocks ends at once");
}

#[test]
fn each_block_fails_alone_whatever_the_store_does() {
    let b = Bench::new(EngineConfig::default());
    let kinds = [Act::Fail(ErrorKind::Io), Act::Panic, Act::Lose, Act::Fail(ErrorKind::Checksum)];
    b.run(JobKind::Store, 1, &[0, 1, 2, 3, 4, 5, 6, 7], &[0; 8]);
    for (n, act) in [1, 3, 5, 7].into_iter().zip(kinds) {
        b.store.script(n, act);
    }
    let result = b.run(JobKind::Load, 2, &[0, 1, 2, 3, 4, 5, 6, 7], &[1, 2, 3, 4, 5, 6, 7, 8]);
    let expected = [(1, ErrorKind::Io), (3, ErrorKind::Internal), (5, ErrorKind::Internal), (7, ErrorKind::Checksum)];
    assert_eq!(failures(&result), expected);
    assert_eq!(result.failures[0].1.fact("key"), Some(key(1).to_string().as_str()));
    assert!(b.run(JobKind::Load, 3, &[0, 1, 2, 3], &[1, 2, 3, 4]).is_success(), "all threads go on");
    let removed = b.engine.take_events().unwrap().into_iter().filter(|e| matches!(e, Event::Removed(..)));
    assert_eq!(removed.collect::<Vec<_>>(), [Event::Removed(key(7), ErrorKind::Checksum)]);
}

#[test]
fn a_transfer_uses_rows_of_its_own_and_keeps_its_result() {
    let b = Bench::new(EngineConfig::default());
    let own = Bench::new(EngineConfig::default());
    (0..4).for_each(|row| own.fill(row, 20 + row as u8));
    let rows = |numbers: &[usize]| numbers.iter().map(|n| (Arc::clone(&own.rows), *n)).collect::<Vec<_>>();
    let stored = b.engine.transfer(JobKind::Store, keys(0..4), &rows(&[0, 1, 2, 3]), || false).unwrap();
    assert!(stored.is_success());
    let loaded = b.engine.transfer(JobKind::Load, keys([3, 9]), &rows(&[30, 31]), || false).unwrap();
    assert_eq!(failures(&loaded), [(1, ErrorKind::Missing)]);
    assert_eq!(own.row(30), [23; ROW]);
    assert!(b.engine.poll().unwrap().is_empty() && b.engine.drain(Some(Duration::ZERO)).unwrap());
    let refused = b.engine.transfer(JobKind::Load, keys([1]), &rows(&[]), || false).unwrap_err();
    assert_eq!(refused.message(), "1 keys but 0 rows: each block has one of both");
}

#[test]
fn a_transfer_that_is_given_up_frees_its_rows() {
    let b = Bench::new(EngineConfig::default());
    let row = [(Arc::clone(&b.rows), 0)];
    b.store.script(1, Act::Stall);
    let given_up = b.engine.transfer(JobKind::Store, keys([1]), &row, || true).unwrap();
    assert_eq!(failures(&given_up), [(0, ErrorKind::Timeout)]);
    b.fill(0, 7);
    b.store.release();
    while b.engine.gauges().unwrap().inflight_ops > 0 {
        std::thread::yield_now();
    }
    assert!(b.store.blocks.lock().is_empty(), "nothing of the reused row was published");
    assert!(b.run(JobKind::Store, u64::MAX, &[2], &[0]).is_success(), "its number is free again");
}

/// One row in memory that says when it is given up.
fn guarded_row(given_up: &Arc<AtomicBool>) -> Arc<Region> {
    struct Owner(#[expect(dead_code, reason = "kept")] HostRows, Arc<AtomicBool>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let rows = HostRows::new(1, ROW).unwrap();
    let part = RowPart { base: rows.base(), row_bytes: ROW, stride: ROW };
    // SAFETY: the part is the rows' memory, which the owner keeps.
    unsafe { Region::from_parts(vec![part], 1, true, Box::new(Owner(rows, Arc::clone(given_up)))) }.unwrap()
}

#[test]
fn a_transfer_has_given_its_memory_up_when_it_returns() {
    let b = Bench::new(EngineConfig::default());
    for n in 0..500 {
        let given_up = Arc::new(AtomicBool::new(false));
        let row = [(guarded_row(&given_up), 0)];
        assert!(b.engine.transfer(JobKind::Store, keys([n]), &row, || false).unwrap().is_success());
        drop(row);
        assert!(given_up.load(Ordering::Relaxed), "transfer {n}");
    }
}

#[test]
fn a_transfer_leaves_all_job_numbers_to_the_caller() {
    let b = Bench::new(EngineConfig::default());
    b.store.script(1, Act::Stall);
    let row = [(Arc::clone(&b.rows), 0)];
    std::thread::scope(|scope| {
        scope.spawn(|| b.engine.transfer(JobKind::Store, keys([1]), &row, || false).unwrap());
        b.wait_until_stalled();
        for job in [u64::MAX, 0, 1] {
            assert!(b.engine.wait(Some(job), None).is_err(), "no job {job} is open");
            assert!(b.run(JobKind::Store, job, &[2], &[1]).is_success());
        }
        b.store.release();
    });
}

#[test]
fn blocks_of_a_transfer_that_share_memory_are_stored_and_not_loaded() {
    let b = Bench::new(EngineConfig::default());
    let row = |n: usize| (Arc::clone(&b.rows), n);
    b.engine.transfer(JobKind::Store, keys(0..3), &[row(0), row(1), row(0)], || false).unwrap();
    let refused = b.engine.transfer(JobKind::Load, keys(0..3), &[row(0), row(1), row(0)], || false).unwrap_err();
    assert_eq!(refused.message(), "blocks 0 and 2 share memory, where only one can be loaded");
}

#[test]
fn wrong_jobs_are_refused_at_the_call() {
    let b = Bench::new(EngineConfig::default());
    let refused = |keys: Vec<BlockKey>, rows: Vec<u32>| b.engine.submit(JobKind::Load, 1, keys, rows).unwrap_err();
    assert_eq!(refused(keys([1]), vec![32]).message(), "row 32 is out of range: the tier has rows 0 to 31");
    assert_eq!(refused(keys([1, 2]), vec![0]).message(), "2 keys but 1 row ids: each block has one of both");
    b.store.script(1, Act::Stall);
    b.engine.submit(JobKind::Store, 1, keys([1]), vec![0]).unwrap();
    assert_eq!(refused(keys([1]), vec![0]).kind(), ErrorKind::InvalidInput);
    b.store.release();
    b.result(1);
    b.engine.submit(JobKind::Store, 1, keys([1]), vec![0]).unwrap();
    assert_eq!(b.engine.wait(Some(9), None).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_row_has_one_use_until_its_result_is_taken() {
    let b = Bench::new(EngineConfig::default());
    let submit = |kind, job, numbers: &[u64], rows: &[u32]| {
        b.engine.submit(kind, job, keys(numbers.iter().copied()), rows.to_vec()).map_err(|e| e.to_string())
    };
    b.run(JobKind::Store, 1, &[1, 2], &[0, 0]);
    let twice = submit(JobKind::Load, 2, &[1, 2], &[5, 5]).unwrap_err();
    assert_eq!(twice, "row 5 is given for two blocks, of which only one can be loaded there");
    submit(JobKind::Load, 2, &[1, 1], &[5, 6]).unwrap();
    b.engine.wait(Some(2), None).unwrap();
    assert_eq!(submit(JobKind::Load, 3, &[2], &[6]).unwrap_err(), "row 6 is in use: an open job loads into it");
    assert_eq!(submit(JobKind::Store, 3, &[3], &[6]).unwrap_err(), "row 6 is in use: an open job loads into it");
    assert_eq!(b.engine.gauges().unwrap().open_jobs, 0, "nothing of a refused job is left");
    b.result(2);
    submit(JobKind::Store, 3, &[3], &[6]).unwrap();
    submit(JobKind::Store, 4, &[4], &[6]).expect("several may read it");
    assert_eq!(submit(JobKind::Load, 5, &[1], &[6]).unwrap_err(), "row 6 is in use: an open job stores it");
}

#[test]
fn a_stalled_store_ends_at_its_deadline_and_publishes_nothing_of_the_reused_row() {
    let b = Bench::new(soon(50));
    b.fill(0, 1);
    b.store.script(1, Act::Stall);
    let result = b.run(JobKind::Store, 1, &[1, 2], &[0, 1]);
    assert_eq!(failures(&result), [(0, ErrorKind::Timeout)], "its neighbour is stored");
    b.fill(0, 2);
    b.store.release();
    assert!(b.engine.drain(None).unwrap());
    assert_eq!(b.run(JobKind::Load, 2, &[1], &[3]).failures[0].1.kind(), ErrorKind::Missing);
    assert_eq!(b.store.published_late.load(Ordering::Relaxed), 0);
    assert_eq!(b.engine.poll().unwrap().len(), 0, "no second result");
}

#[test]
fn a_store_that_failed_is_a_miss_and_no_event() {
    let b = Bench::new(EngineConfig::default());
    b.store.script(1, Act::Fail(ErrorKind::NoSpace));
    b.store.script(2, Act::Panic);
    b.store.script(3, Act::Lose);
    let result = b.run(JobKind::Store, 1, &[1, 2, 3], &[0, 1, 2]);
    assert_eq!(failures(&result).len(), 3);
    assert!((1..=3).all(|n| b.lookup(n, 1) == Lookup::Miss));
    assert_eq!(b.engine.take_events().unwrap(), []);
    let stores = &b.engine.metrics().stores;
    assert_eq!((stores.blocks.get(), stores.bytes.get(), stores.jobs.get()), (0, 0, 1));
    assert_eq!(stores.failures.counted(), [(ErrorKind::NoSpace, 1), (ErrorKind::Internal, 2)]);
}

#[test]
fn an_answer_after_the_deadline_is_counted_nowhere() {
    let b = Bench::new(soon(50));
    b.store.script(1, Act::Stall);
    assert_eq!(failures(&b.run(JobKind::Store, 1, &[1], &[0])), [(0, ErrorKind::Timeout)]);
    b.store.release();
    while b.engine.gauges().unwrap().inflight_ops > 0 {
        std::thread::yield_now();
    }
    let stores = &b.engine.metrics().stores;
    assert_eq!(stores.failures.counted(), [(ErrorKind::Timeout, 1)], "once, for what the caller was told");
    assert_eq!((stores.blocks.get(), stores.jobs.get()), (0, 1));
    assert_eq!(b.engine.take_events().unwrap(), []);
}

#[test]
fn a_store_that_answers_later_is_kept_busy() {
    let config = EngineConfig { max_inflight_ops: 2, ..EngineConfig::default() };
    let b = Bench::over(Script::new(2, false), config);
    for n in 0..64 {
        b.store.script(n, Act::Later);
        b.store.script(n, Act::Later);
    }
    b.engine.submit(JobKind::Store, 1, keys(0..64), (0..64).map(|n| n % 32).collect()).unwrap();
    assert!(b.result(1).is_success());
    b.engine.submit(JobKind::Load, 2, keys(0..32), (0..32).collect()).unwrap();
    assert!(b.result(2).is_success());
    for n in 100..300 {
        b.store.script(n, Act::Later);
        assert_eq!(b.engine.lookup(&key(n), Some(RequestId(1))).unwrap(), Lookup::Retry);
    }
    let soon = Instant::now() + Duration::from_secs(1);
    assert!((100..300).all(|n| b.lookup(n, 1) == Lookup::Miss));
    assert!(Instant::now() < soon, "by answers, and not by the timeout");
}

#[test]
fn a_probe_that_is_stuck_is_a_miss_when_its_time_is_over() {
    let config = EngineConfig { lookup_timeout: Duration::from_millis(50), ..EngineConfig::default() };
    let b = Bench::over(Script::new(2, false), config);
    b.store.blocks.lock().extend((0..4).map(|n| (key(n), vec![0; ROW])));
    b.store.script(0, Act::Stall);
    let asked = Instant::now();
    assert_eq!(b.engine.lookup(&key(0), Some(RequestId(1))).unwrap(), Lookup::Retry);
    while b.store.probes.lock().is_empty() {
        std::thread::yield_now();
    }
    assert!((0..4).all(|n| b.lookup(n, 1) == Lookup::Miss), "those behind it as well");
    assert!(asked.elapsed() >= Duration::from_millis(50));
    b.store.release();
    assert!((0..4).all(|n| (b.lookup(n, 1), b.lookup(n, 2)) == (Lookup::Miss, Lookup::Hit)));
}

#[test]
fn a_number_that_is_used_again_has_a_deadline_of_its_own() {
    let b = Bench::new(soon(200));
    assert!(b.run(JobKind::Store, 1, &[1], &[0]).is_success());
    std::thread::sleep(Duration::from_millis(120));
    b.store.script(2, Act::Stall);
    let ended = b.run(JobKind::Store, 1, &[2], &[0]);
    assert_eq!(failures(&ended), [(0, ErrorKind::Timeout)]);
    assert!(ended.transfer_time >= Duration::from_millis(200), "{:?}", ended.transfer_time);
    b.store.release();
}

#[test]
fn a_stalled_load_ends_at_its_deadline_and_touches_nothing_afterwards() {
    let b = Bench::new(soon(50));
    b.fill(0, 1);
    b.run(JobKind::Store, 1, &[1], &[0]);
    b.store.script(1, Act::Stall);
    assert_eq!(b.lookup(1, 5), Lookup::Hit);
    assert_eq!(failures(&b.run(JobKind::Load, 2, &[1], &[2])), [(0, ErrorKind::Timeout)]);
    assert_eq!(b.lookup(1, 5), Lookup::Miss, "whoever was told HIT is told MISS now");
    b.fill(2, 9);
    b.store.release();
    assert!(b.run(JobKind::Load, 3, &[1], &[3]).is_success());
    assert_eq!((b.row(2)[0], b.row(3)[0]), (9, 1));
}

#[test]
fn a_read_that_sits_in_the_row_withholds_its_result_and_degrades_the_tier() {
    let b = Bench::new(soon(50));
    b.run(JobKind::Store, 1, &[1], &[0]);
    b.store.script(1, Act::StallInside);
    b.engine.submit(JobKind::Load, 2, keys([1]), vec![1]).unwrap();
    assert!(!b.engine.wait(Some(2), Some(Duration::from_millis(200))).unwrap(), "the row is not handed back");
    assert!(b.engine.gauges().unwrap().degraded);
    assert_eq!(b.lookup(1, 1), Lookup::Miss);
    assert_eq!(failures(&b.run(JobKind::Store, 3, &[4], &[2])), [(0, ErrorKind::Degraded)]);
    b.store.release();
    assert_eq!(failures(&b.result(2)), [(0, ErrorKind::Timeout)]);
    assert!(!b.engine.gauges().unwrap().degraded);
    assert_eq!(b.lookup(1, 2), Lookup::Hit);
}

#[test]
fn a_read_that_sits_in_the_row_withholds_its_result_from_a_shutdown_too() {
    let b = Bench::new(soon(50));
    b.run(JobKind::Store, 1, &[1], &[0]);
    b.store.script(1, Act::StallInside);
    b.engine.submit(JobKind::Load, 2, keys([1]), vec![1]).unwrap();
    while !b.engine.gauges().unwrap().degraded {
        std::thread::yield_now();
    }
    assert_eq!(b.engine.shutdown(Duration::from_millis(20), || false).unwrap(), 1);
    assert_eq!(b.engine.shutdown(Duration::ZERO, || false).unwrap(), 1);
    assert!(b.engine.poll().unwrap().is_empty(), "the row is still being written to");
    b.store.release();
    assert_eq!(failures(&b.result(2)), [(0, ErrorKind::Timeout)]);
    assert!(!b.engine.gauges().unwrap().degraded);
}

#[test]
fn stores_beyond_the_bound_are_dropped_and_loads_are_not() {
    let config = EngineConfig { max_queued_store_bytes: 6 * ROW as u64, ..EngineConfig::default() };
    let b = Bench::over(Script::new(1, false), config);
    b.store.script(0, Act::Stall);
    for job in 0..3 {
        b.engine.submit(JobKind::Store, job, keys([job, job + 10, job + 20]), vec![0; 3]).unwrap();
        b.wait_until_stalled();
    }
    let dropped = b.result(2);
    assert_eq!(failures(&dropped), [(0, ErrorKind::Dropped), (1, ErrorKind::Dropped), (2, ErrorKind::Dropped)]);
    b.engine.submit(JobKind::Load, 9, keys([1; 16]), (1..17).collect()).unwrap();
    b.store.release();
    assert!(b.engine.drain(Some(Duration::from_secs(20))).unwrap());
    let mut ended: Vec<_> = b.engine.poll().unwrap().iter().map(|r| r.job_id).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 9]);
    assert!(
        b.run(JobKind::Store, 3, &[50, 51, 52, 53, 54, 55, 56, 57], &[0; 8]).is_success(),
        "alone it may be larger"
    );
}

#[test]
fn loads_go_before_stores_but_not_all_of_them() {
    let b = Bench::over(Script::new(1, false), EngineConfig::default());
    b.run(JobKind::Store, 1, &[100], &[0]);
    b.store.script(0, Act::Stall);
    b.engine.submit(JobKind::Store, 2, keys(0..9), vec![0; 9]).unwrap();
    for job in 10..22 {
        b.engine.submit(JobKind::Load, job, keys([100]), vec![job as u32]).unwrap();
    }
    b.store.release();
    assert!(b.engine.drain(Some(Duration::from_secs(20))).unwrap());
    let order: Vec<_> = b.engine.poll().unwrap().iter().map(|r| r.job_id).collect();
    assert_eq!(order, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 2], "eight stores in four turns and after");
}

#[test]
fn a_step_of_lookups_is_probed_in_few_batches() {
    let b = Bench::over(Script::new(1, false), EngineConfig::default());
    b.store.script(1_000, Act::Stall);
    b.engine.lookup(&key(1_000), None).unwrap();
    while b.store.probes.lock().is_empty() {
        std::thread::yield_now();
    }
    for n in 0..PROBE_BATCH as u64 {
        assert_eq!(b.engine.lookup(&key(n), Some(RequestId(1))).unwrap(), Lookup::Retry);
    }
    b.store.release();
    assert!((0..PROBE_BATCH as u64).all(|n| b.lookup(n, 1) == Lookup::Miss));
    assert_eq!(*b.store.probes.lock(), [1, PROBE_BATCH]);
}

#[test]
fn events_that_nobody_wants_are_not_kept() {
    let b = Bench::new(EngineConfig { events: false, ..EngineConfig::default() });
    assert!(b.run(JobKind::Store, 1, &[1], &[0]).is_success());
    assert_eq!(b.engine.take_events().unwrap(), []);
    assert_eq!(b.engine.metrics().events_lost.get(), 0);
}

#[test]
fn an_exclusive_tier_knows_what_is_here_after_its_scan() {
    let store = Script::new(2, true);
    store.blocks.lock().extend((0..1_000).map(|n| (key(n), vec![0; ROW])));
    let b = Bench::over(Arc::clone(&store), EngineConfig::default());
    while !b.engine.gauges().unwrap().index_complete {
        std::thread::yield_now();
    }
    assert_eq!(b.engine.gauges().unwrap().resident_blocks, 1_000);
    assert_eq!(b.engine.lookup(&key(999), None).unwrap(), Lookup::Hit);
    assert_eq!(b.engine.lookup(&key(1_000), None).unwrap(), Lookup::Miss);
    b.engine.reset(Duration::from_secs(5), || false).unwrap();
    assert_eq!(b.engine.lookup(&key(999), None).unwrap(), Lookup::Miss);
    assert_eq!(b.engine.take_events().unwrap(), [Event::Cleared]);
}

#[test]
fn forgetting_while_a_scan_runs_makes_no_block_a_miss() {
    const BLOCKS: u64 = 700;
    let store = Script::new(2, true);
    store.blocks.lock().extend((0..BLOCKS).map(|n| (key(n), vec![0; ROW])));
    let b = Bench::over(Arc::clone(&store), EngineConfig::default());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..2_000).for_each(|_| b.engine.forget().unwrap()));
        for n in (0..BLOCKS).cycle().take(200_000) {
            assert_ne!(b.engine.lookup(&key(n), None).unwrap(), Lookup::Miss, "block {n}");
        }
    });
}

#[test]
fn a_failing_device_makes_no_block_a_miss_for_those_who_ask_later() {
    let store = Script::new(2, true);
    store.blocks.lock().insert(key(1), vec![0; ROW]);
    let b = Bench::over(Arc::clone(&store), EngineConfig::default());
    while !b.engine.gauges().unwrap().index_complete {
        std::thread::yield_now();
    }
    for kind in [ErrorKind::Io, ErrorKind::Permission, ErrorKind::Unavailable, ErrorKind::Timeout] {
        let job = kind.index() as u64;
        assert_eq!(b.lookup(1, job), Lookup::Hit);
        b.store.script(1, Act::Fail(kind));
        assert_eq!(failures(&b.run(JobKind::Load, 1, &[1], &[0])), [(0, kind)]);
        assert_eq!(b.lookup(1, job), Lookup::Miss);
    }
    assert_eq!(b.lookup(1, 1000), Lookup::Hit);
}

#[test]
fn what_is_submitted_while_a_reset_waits_comes_after_it() {
    let b = Bench::over(Script::new(1, false), EngineConfig::default());
    b.store.script(1, Act::Stall);
    b.engine.submit(JobKind::Store, 1, keys([1]), vec![0]).unwrap();
    b.wait_until_stalled();
    std::thread::scope(|scope| {
        let reset = scope.spawn(|| b.engine.reset(Duration::from_secs(20), || false));
        b.result(1); // ended by the reset
        b.engine.submit(JobKind::Store, 2, keys([2]), vec![0]).unwrap();
        b.store.release();
        reset.join().unwrap().unwrap();
    });
    assert!(b.result(2).is_success());
    assert!(b.run(JobKind::Load, 3, &[2], &[1]).is_success(), "the reset has not taken it away");
}

#[test]
fn a_reset_ends_open_jobs_and_publishes_nothing_of_them() {
    let b = Bench::new(EngineConfig::default());
    b.store.script(1, Act::Stall);
    b.engine.submit(JobKind::Store, 1, keys([1]), vec![0]).unwrap();
    b.wait_until_stalled();
    assert_eq!(b.engine.reset(Duration::from_millis(50), || false).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(failures(&b.result(1)), [(0, ErrorKind::Reset)]);
    b.store.release();
    b.engine.reset(Duration::from_secs(20), || false).unwrap();
    assert_eq!(b.lookup(1, 1), Lookup::Miss);
    assert!(b.run(JobKind::Store, 2, &[1], &[0]).is_success());
}

#[test]
fn shutdown_gives_every_job_its_result() {
    let b = Bench::over(Script::new(2, false), EngineConfig::default());
    b.store.script(0, Act::Stall);
    for job in 0..100 {
        b.engine.submit(JobKind::Store, job, keys([job * 2, job * 2 + 1]), vec![0, 1]).unwrap();
        b.wait_until_stalled();
    }
    assert_eq!(b.engine.shutdown(Duration::from_millis(50), || false).unwrap(), 1, "one is stuck in the storage");
    let results = b.engine.poll().unwrap();
    assert_eq!(results.len(), 100);
    assert!(results.iter().all(|r| failures(r).iter().all(|(_, kind)| *kind == ErrorKind::Shutdown)));
    assert_eq!(b.engine.submit(JobKind::Load, 1, keys([1]), vec![0]).unwrap_err().kind(), ErrorKind::Shutdown);
    assert_eq!(b.engine.lookup(&key(1), None).unwrap_err().kind(), ErrorKind::Shutdown);
    b.store.release();
}

#[test]
fn no_timeout_is_too_long() {
    let b = Bench::new(EngineConfig::default());
    b.run(JobKind::Store, 1, &[1], &[0]);
    b.engine.reset(Duration::MAX, || false).unwrap();
    assert_eq!(b.engine.shutdown(Duration::MAX, || false).unwrap(), 0);
}

#[test]
fn whoever_gives_up_waits_no_longer_for_a_reset_or_a_shutdown() {
    let b = Bench::new(EngineConfig::default());
    b.store.script(1, Act::Stall);
    b.engine.submit(JobKind::Store, 1, keys([1]), vec![0]).unwrap();
    b.wait_until_stalled();
    let mut asked = 0;
    let mut third_time = || {
        asked += 1;
        asked % 3 == 0
    };
    assert_eq!(b.engine.reset(Duration::MAX, &mut third_time).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(b.engine.shutdown(Duration::MAX, &mut third_time).unwrap(), 1);
    assert_eq!(b.engine.lookup(&key(1), None).unwrap_err().kind(), ErrorKind::Shutdown, "it is over all the same");
    b.store.release();
}

#[test]
fn rows_are_free_after_shutdown() {
    let b = Bench::new(EngineConfig::default());
    b.run(JobKind::Store, 1, &[1], &[0]);
    assert!(Arc::strong_count(&b.rows) > 1);
    assert_eq!(b.engine.shutdown(Duration::from_secs(5), || false).unwrap(), 0);
    assert_eq!(Arc::strong_count(&b.rows), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Job { store: bool, blocks: Vec<(u64, Option<Act>)> },
    Lookup { n: u64, request: u64 },
    End,
    Poll,
    Release { request: u64 },
    Forget,
    Reset,
    Shutdown,
}

fn step() -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        12 => Just(None),
        1 => Just(Some(Act::Fail(ErrorKind::Io))),
        1 => Just(Some(Act::Fail(ErrorKind::Checksum))),
        1 => Just(Some(Act::Panic)),
        1 => Just(Some(Act::Lose)),
        1 => Just(Some(Act::Stall)),
        1 => Just(Some(Act::StallInside)),
    ];
    prop_oneof![
        8 => (any::<bool>(), prop::collection::btree_map(0..12_u64, act, 0..6))
            .prop_map(|(store, blocks)| Step::Job { store, blocks: blocks.into_iter().collect() }),
        6 => (0..12_u64, 0..3_u64).prop_map(|(n, request)| Step::Lookup { n, request }),
        3 => Just(Step::End),
        3 => Just(Step::Poll),
        1 => (0..3_u64).prop_map(|request| Step::Release { request }),
        1 => Just(Step::Forget),
        1 => Just(Step::Reset),
        1 => Just(Step::Shutdown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever is submitted, and whatever the store does: one result per job, each row filled with its key's bytes
    /// exactly where success is reported, and no row touched once its job's result is out.
    #[test]
    fn every_job_has_one_true_result(stepwise: bool, steps in prop::collection::vec(step(), 1..40)) {
        let b = Bench::new(EngineConfig { stepwise, ..soon(30) });
        let mut open: HashMap<u64, (Vec<u64>, Vec<u32>, bool)> = HashMap::new();
        // Each job has rows of its own kind of mark; a row is reused (and marked) the moment its result is out.
        let mut free: Vec<u32> = (0..32).collect();
        let mut marks: HashMap<u32, u8> = HashMap::new();
        let mut stored: HashMap<u64, bool> = HashMap::new();
        let mut closed = false;
        let mut next_job = 0;

        let settle = |open: &mut HashMap<u64, (Vec<u64>, Vec<u32>, bool)>,
                          free: &mut Vec<u32>,
                          marks: &mut HashMap<u32, u8>,
                          stored: &mut HashMap<u64, bool>| {
            for result in b.engine.poll().unwrap() {
                let (numbers, rows, is_store) = open.remove(&result.job_id).expect("one result per job");
                prop_assert_eq!(result.keys.len(), numbers.len());
                let failed: HashMap<_, _> = failures(&result).into_iter().collect();
                for (i, (n, row)) in numbers.iter().zip(&rows).enumerate() {
                    if failed.contains_key(&i) {
                    } else if is_store {
                        stored.insert(*n, true);
                    } else {
                        prop_assert_eq!(b.row(*row), vec![*n as u8 + 100; ROW], "row {} of key {}", row, n);
                    }
                    // The engine reuses the row at once.
                    let mark = 200 + (*row % 50) as u8;
                    b.fill(*row, mark);
                    marks.insert(*row, mark);
                    free.push(*row);
                }
            }
            Ok(())
        };

        for step in steps {
            match step {
                Step::Job { store, blocks } => {
                    if free.len() < blocks.len() {
                        continue;
                    }
                    let rows = free.split_off(free.len() - blocks.len());
                    for ((n, act), row) in blocks.iter().zip(&rows) {
                        marks.remove(row);
                        b.fill(*row, if store { *n as u8 + 100 } else { 0 });
                        if let Some(act) = act {
                            b.store.script(*n, *act);
                        }
                    }
                    let numbers: Vec<_> = blocks.iter().map(|(n, _)| *n).collect();
                    let kind = if store { JobKind::Store } else { JobKind::Load };
                    match b.engine.submit(kind, next_job, keys(numbers.iter().copied()), rows.clone()) {
                        Ok(()) => {
                            open.insert(next_job, (numbers, rows, store));
                        }
                        Err(error) => {
                            prop_assert!(closed && error.kind() == ErrorKind::Shutdown, "{}", error);
                            free.extend(rows);
                        }
                    }
                    next_job += 1;
                }
                Step::Lookup { n, request } => {
                    let answer = b.engine.lookup(&key(n), Some(RequestId(request)));
                    prop_assert_eq!(answer.is_err(), closed);
                }
                Step::End => b.engine.end_step().unwrap(),
                Step::Poll => settle(&mut open, &mut free, &mut marks, &mut stored)?,
                Step::Release { request } => b.engine.release(RequestId(request)).unwrap(),
                Step::Forget => prop_assert_eq!(b.engine.forget().is_err(), closed),
                Step::Reset => {
                    let reset = b.engine.reset(Duration::from_millis(5), || false);
                    if reset.is_ok() {
                        stored.clear();
                    }
                }
                Step::Shutdown => {
                    b.engine.shutdown(Duration::from_millis(5), || false).unwrap();
                    closed = true;
                }
            }
            for (row, mark) in &marks {
                prop_assert_eq!(b.row(*row), vec![*mark; ROW], "row {} was touched after its result", row);
            }
        }
        b.store.release();
        let until = Instant::now() + Duration::from_secs(20);
        while !open.is_empty() && Instant::now() < until {
            b.engine.drain(Some(Duration::from_millis(200))).unwrap();
            settle(&mut open, &mut free, &mut marks, &mut stored)?;
        }
        prop_assert!(open.is_empty(), "jobs without a result: {:?}", open);
        for (row, mark) in &marks {
            prop_assert_eq!(b.row(*row), vec![*mark; ROW], "row {} was touched after its result", row);
        }
        for (key, bytes) in &*b.store.blocks.lock() {
            let n = u64::from_be_bytes(key.hash_bytes().try_into().unwrap());
            prop_assert_eq!(bytes, &vec![n as u8 + 100; ROW], "block {} holds another row's bytes", n);
        }
    }
}
