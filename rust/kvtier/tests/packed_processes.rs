//! Several processes in one pool: together, killed, stopped, in other PID namespaces, on a full disk.
//!
//! The other processes play [`ROLES`].

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]
#![allow(clippy::print_stderr, reason = "what is skipped says why")]

mod places;
mod roles;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvtier::buffer::HostRows;
use kvtier::error::ErrorKind;
use kvtier::layout::BlockKey;
use kvtier::store::Known;
use kvtier::store::packed::format::Superblock;
use kvtier::store::packed::{Bounds, Census, PackedConfig, PackedStore, check};
use kvtier::store::url::format_of;
use places::pool::bounds;
use places::{Harness, Open, key, test_root};
use roles::{FIRST, Roles, assert_good_end, kill, number, ready, wait_until_ready};
use rustix::process::{Pid, Signal, kill_process};

/// Parts that other processes play on a root.
const ROLES: Roles = Roles(&[
    ("store", store_many),
    ("store and load what was stored", store_and_load),
    ("load what can be found", load_many),
    ("fill the disk", fill_the_disk),
    ("store one and say so", store_one),
    ("store, load and count", store_load_and_count),
]);

const BLOCKS: &str = "KVTIER_TEST_BLOCKS";
const SEGMENTS: &str = "KVTIER_TEST_SEGMENTS";
/// Loads of each of two readers while others reclaim: more by hand.
const LOADS: &str = "KVTIER_TEST_LOADS";
/// How long one of eight processes is stopped: longer by hand.
const STOPPED: &str = "KVTIER_TEST_STOPPED_SECONDS";

#[test]
fn another_process() {
    ROLES.play();
}

const OPEN: Open = Open { letter: 'p', payload_bytes: 12 << 10, ..Open::DEFAULT };

/// Blocks that each of two writers stores again and again.
const RANGE: usize = 100_000;

/// Slots of a segment of a MiB.
const SLOTS: usize = 63;

fn open_as(root: &Path, config: PackedConfig) -> Harness {
    let store = PackedStore::open(root, &OPEN.namespace(), config, places::io(2)).unwrap();
    Harness::with(Arc::new(store), &HostRows::new(4, OPEN.payload_bytes).unwrap().region())
}

fn open_with(root: &Path, bounds: Bounds) -> Harness {
    open_as(root, PackedConfig::new(format_of(&OPEN.namespace()), bounds))
}

fn open(root: &Path) -> Harness {
    open_with(root, bounds(number(SEGMENTS, 8) as u64))
}

/// Loads block `n`, if it is there; whatever comes is right.
fn load_block(harness: &Harness, n: usize) -> bool {
    match harness.load_by(1, n) {
        Ok(is_right) => {
            assert!(is_right, "block {n} has wrong bytes");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Missing, "block {n}: {error}");
            false
        }
    }
}

fn store_many(root: &Path) {
    let harness = open(root);
    let first = number(FIRST, 0);
    for n in 0..number(BLOCKS, 1_000_000_000) {
        match harness.store_by(0, first + n % RANGE) {
            Ok(_) => {}
            // Others have all segments just now.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Capacity, "{error}"),
        }
    }
}

fn store_and_load(root: &Path) {
    let harness = open(root);
    let first = number(FIRST, 0);
    for n in first..first + number(BLOCKS, 1_000_000) {
        if harness.store_by(0, n).is_ok() {
            load_block(&harness, n);
        }
        load_block(&harness, n.saturating_sub(100));
    }
}

fn load_many(root: &Path) {
    let harness = open(root);
    let (first, blocks) = (number(FIRST, 0), number(BLOCKS, 10_000));
    let (mut loaded, mut missing, mut tries, mut n) = (0, 0, 0, first);
    let give_up = Instant::now() + Duration::from_secs(100 + blocks as u64 / 500);
    while loaded < blocks && Instant::now() < give_up {
        if harness.is_known(n) {
            let is_right = load_block(&harness, n);
            loaded += usize::from(is_right);
            missing += usize::from(!is_right);
            n += 1;
        } else {
            // Writers go through their blocks in order, so that there are more beside one.
            tries += 1;
            n = first + tries * 7919 % (2 * RANGE);
        }
    }
    eprintln!("{loaded} blocks were right, {missing} were overtaken");
    assert!(loaded >= blocks, "only {loaded} blocks were found in time");
}

/// Everything in the pool agrees, and each block is right.
fn assert_sound(root: &Path) -> Census {
    let census = check(root, true).unwrap();
    for segment in &census.segments {
        assert!(segment.wrong.is_empty(), "segment {}: {:?}", segment.id, segment.wrong);
        assert_eq!(segment.damaged_pages, 0, "segment {}", segment.id);
        if let Ok(header) = &segment.header {
            assert_eq!(segment.blocks + segment.dead + segment.free, header.slots, "segment {}", segment.id);
        }
    }
    census
}

fn used_bytes(root: &Path) -> u64 {
    check(root, false).unwrap().used_bytes
}

/// The same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Kills writers at random, `kills` times, `writers` at the same time.
fn kill_writers(kills: usize, writers: usize) {
    let root = test_root();
    let mut random = Random(0x9E37_79B9);
    let cap = Superblock::cap_for(8, 1 << 20);
    let spawn = |first: usize| {
        let mut command = ROLES.process("store and load what was stored", root.path());
        command.env(FIRST, first.to_string()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = 0;
    let mut children: Vec<Child> = Vec::new();
    for round in 0..kills {
        while children.len() < writers {
            children.push(spawn(first));
            first += 2000;
        }
        std::thread::sleep(Duration::from_millis(5 + random.below(60)));
        let mut victim = children.swap_remove(random.below(children.len() as u64) as usize);
        if let Some(status) = victim.try_wait().unwrap() {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut victim.stderr.take().unwrap(), &mut text).unwrap();
            panic!("a writer ended by itself: {status}: {text}");
        }
        kill(&mut victim);
        if round % 20 == 19 {
            let used = used_bytes(root.path());
            assert!(used <= cap + cap / 100, "{used} bytes of {cap} after {round} kills");
        }
    }
    children.iter_mut().for_each(kill);
    let census = assert_sound(root.path());
    assert!(census.used_bytes <= cap + cap / 100, "{} bytes of {cap}", census.used_bytes);
    // A new process finds what the tables say, and each of it loads.
    let harness = open(root.path());
    let known: Vec<_> = (0..first + 2000).filter(|n| harness.is_known(*n)).collect();
    assert!(known.len() as u64 <= census.blocks());
    assert!(!known.is_empty());
    for n in known {
        assert!(load_block(&harness, n), "block {n} is known and can't be loaded");
    }
    // All room is usable.
    for n in 0..20 * SLOTS {
        harness.store_by(0, 10_000_000 + n).unwrap();
    }
    assert!(assert_sound(root.path()).blocks() >= 7 * SLOTS as u64);
}

#[test]
fn killed_writers_leave_a_sound_pool() {
    kill_writers(60, 3);
}

#[test]
#[ignore = "slow: kills 2,000 writers"]
fn many_killed_writers_leave_a_sound_pool() {
    kill_writers(number("KVTIER_TEST_KILLS", 2000), 3);
}

#[test]
fn what_a_dead_owner_has_left_is_taken_over_at_once() {
    let root = test_root();
    let mut child = ROLES.process("store one and say so", root.path()).stdout(Stdio::piped()).spawn().unwrap();
    let _output = wait_until_ready(&mut child);
    let harness = open(root.path());
    assert!(load_block(&harness, 0));
    // While its owner lives, its segment is its own.
    harness.store_by(0, 1).unwrap();
    assert_eq!(check(root.path(), false).unwrap().segments.len(), 2);
    kill(&mut child);
    for n in 2..2 * SLOTS {
        harness.store_by(0, n).unwrap();
    }
    assert_eq!(assert_sound(root.path()).segments.len(), 2, "its free slots were used");
}

fn store_one(root: &Path) {
    let harness = open(root);
    harness.store_by(0, number(FIRST, 0)).unwrap();
    ready();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn what_another_process_stores_is_found_soon() {
    let root = test_root();
    let harness = open(root.path());
    for round in 0..5 {
        let mut child = ROLES
            .process("store one and say so", root.path())
            .env(FIRST, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _output = wait_until_ready(&mut child);
        let began = Instant::now();
        while !harness.is_known(round) {
            assert!(began.elapsed() < Duration::from_secs(5), "block {round} is not found");
            std::thread::sleep(Duration::from_millis(1));
        }
        eprintln!("found after {:?}", began.elapsed());
        assert!(load_block(&harness, round));
        kill(&mut child);
    }
}

#[test]
fn readers_get_right_blocks_or_none_while_others_reclaim() {
    let root = test_root();
    drop(open(root.path()));
    let mut writers: Vec<_> = (0..2)
        .map(|i: usize| {
            ROLES
                .process("store", root.path())
                .env(FIRST, (i * RANGE).to_string())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let mut command = ROLES.process("load what can be found", root.path());
            command
                .env(BLOCKS, number(LOADS, 5000).to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for reader in readers {
        let output = reader.wait_with_output().unwrap();
        assert_good_end(&output);
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    writers.iter_mut().for_each(kill);
    assert_sound(root.path());
}

#[test]
fn what_other_processes_drop_is_told() {
    let root = test_root();
    let config = PackedConfig::new(format_of(&OPEN.namespace()), bounds(8));
    let harness = open_as(root.path(), PackedConfig { tells_all: true, ..config });
    let told: Arc<std::sync::Mutex<Vec<BlockKey>>> = Arc::default();
    let listener = Arc::clone(&told);
    harness.raw_store().on_dropped(Box::new(move |keys| listener.lock().unwrap().extend(keys)));
    // The last of these segments stays this process's own.
    let own = 10 * RANGE..10 * RANGE + 3 * SLOTS;
    for n in own.clone() {
        harness.store_by(0, n).unwrap();
    }
    assert!(told.lock().unwrap().is_empty());
    // It keeps some of what it has loaded, in other places.
    let mut other = ROLES.process("store and load what was stored", root.path());
    let other = other.env(BLOCKS, (3 * 8 * SLOTS).to_string()).stdout(Stdio::null()).status().unwrap();
    assert!(other.success());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let told: Vec<_> = told.lock().unwrap().clone();
        let dropped = own.clone().filter(|n| !harness.is_known(*n)).count();
        let is_told = |n: &usize| told.contains(&key(*n));
        if dropped > 0 && own.clone().filter(is_told).count() == dropped {
            assert!(own.clone().all(|n| is_told(&n) != harness.is_known(n)));
            let residency = harness.raw_store().residency().unwrap();
            assert!(told.iter().all(|key| residency.find(key) == Known::Absent), "one is there still");
            assert!(told.len() > 5 * SLOTS, "{} blocks", told.len());
            break;
        }
        assert!(Instant::now() < until, "{dropped} blocks were dropped, and this was told: {told:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn processes_together_stay_below_the_cap() {
    for processes in [1, 2, 8] {
        let root = test_root();
        let cap = Superblock::cap_for(16, 1 << 20);
        let spawn = |i: usize| {
            let mut command = ROLES.process("store", root.path());
            let blocks = 20 * 16 * SLOTS / 8 / processes;
            command.env(FIRST, (i * 100_000).to_string()).env(BLOCKS, blocks.to_string()).env(SEGMENTS, "16");
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let mut children: Vec<_> = (0..processes).map(spawn).collect();
        while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
            // The first of them may not have begun.
            if let Ok(census) = check(root.path(), false) {
                assert!(census.used_bytes <= cap + cap / 100, "{} of {cap} bytes", census.used_bytes);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(children.iter_mut().all(|child| child.wait().unwrap().success()), "{processes} processes");
        let census = assert_sound(root.path());
        assert!(census.segments.len() >= 15, "{} segments are in use", census.segments.len());
    }
}

#[test]
fn a_stopped_process_holds_up_nobody() {
    let root = test_root();
    let mut child = ROLES.process("store one and say so", root.path()).stdout(Stdio::piped()).spawn().unwrap();
    let _output = wait_until_ready(&mut child);
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    let harness = open(root.path());
    assert!(load_block(&harness, 0));
    for n in 1..20 * SLOTS {
        harness.store_by(0, n).unwrap();
        assert!(load_block(&harness, n));
    }
    // Its segment is still its own.
    assert!(harness.is_known(0) && load_block(&harness, 0));
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    kill(&mut child);
    assert_sound(root.path());
}

fn store_load_and_count(root: &Path) {
    let harness = open(root);
    let first = number(FIRST, 0);
    for n in first..first + number(BLOCKS, 1_000_000_000) {
        match harness.store_by(0, n) {
            Ok(_) => drop(load_block(&harness, n)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Capacity, "{error}"),
        }
        if n % 10 == 9 {
            std::io::stdout().write_all(b"\nten\n").unwrap();
        }
    }
}

/// A process that stores and loads, and how many blocks it has stored.
struct Counted {
    child: Child,
    stored: Arc<AtomicUsize>,
}

impl Counted {
    fn spawn(root: &Path, first: usize, segments: u64) -> Self {
        let mut command = ROLES.process("store, load and count", root);
        command.env(FIRST, first.to_string()).env(SEGMENTS, segments.to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, stored) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::<AtomicUsize>::default());
        let counter = Arc::clone(&stored);
        std::thread::spawn(move || {
            for _ in lines.map_while(Result::ok).filter(|line| line == "ten") {
                counter.fetch_add(10, Ordering::Relaxed);
            }
        });
        Self { child, stored }
    }

    fn stored(&self) -> usize {
        self.stored.load(Ordering::Relaxed)
    }

    /// Sees that it goes on.
    fn check(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut text).unwrap();
            panic!("a process ended by itself: {status}: {text}");
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// What `du` says.
fn du(root: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let listed = fs::read_dir(root.join("kvtier-pool")).into_iter().flatten().flatten();
    // What goes meanwhile counts no more.
    listed.filter_map(|entry| entry.metadata().ok()).map(|data| data.blocks() * 512).sum()
}

#[test]
#[ignore = "slow: pushes 20 times the cap, three times"]
fn killed_processes_together_stay_below_the_cap() {
    let segments = number(SEGMENTS, 16) as u64;
    let cap = Superblock::cap_for(segments, 1 << 20);
    for processes in [1_u64, 2, 8] {
        let (root, mut random) = (test_root(), Random(processes));
        let (mut first, mut pushed, mut kills, mut most) = (0, 0, 0, 0);
        let mut spawn = || {
            first += 1_000_000;
            Counted::spawn(root.path(), first, segments)
        };
        let mut running: Vec<_> = (0..processes).map(|_| spawn()).collect();
        let mut next_kill = Instant::now();
        let wanted = 20 * SLOTS * segments as usize;
        while pushed + running.iter().map(Counted::stored).sum::<usize>() < wanted {
            most = du(root.path()).max(most);
            assert!(most <= cap + cap / 100, "{most} bytes of {cap}");
            running.iter_mut().for_each(Counted::check);
            if Instant::now() >= next_kill {
                let victim = running.swap_remove(random.below(processes) as usize);
                pushed += victim.stored();
                kills += 1;
                drop(victim);
                running.push(spawn());
                next_kill = Instant::now() + Duration::from_millis(20 + random.below(300));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(running);
        eprintln!("{processes} processes, {kills} kills, {wanted} blocks: at most {most} bytes of {cap}");
        // What a new process counts is what is there.
        let census = assert_sound(root.path());
        assert_eq!(census.used_bytes, du(root.path()));
        assert!(census.segments.len() as u64 >= segments - 1, "{} segments", census.segments.len());
        let harness = open_with(root.path(), bounds(segments));
        let residency = harness.raw_store().residency().unwrap();
        assert_eq!(residency.blocks() as u64, census.blocks());
        let mut found = 0;
        harness
            .raw_store()
            .scan(&mut |_, _| {
                found += 1;
                true
            })
            .unwrap();
        assert!(found <= census.blocks() && found > 0);
    }
}

#[test]
#[ignore = "slow: one of eight processes stands still for seconds"]
fn one_of_eight_that_stands_still_holds_up_nobody() {
    let root = test_root();
    let segments = 32;
    let mut all: Vec<_> = (0..8).map(|i| Counted::spawn(root.path(), i * 1_000_000, segments)).collect();
    let harness = open_with(root.path(), bounds(segments));
    let went_on =
        |all: &[Counted], before: &[usize]| all.iter().zip(before).all(|(one, before)| one.stored() > *before);
    let wait_for_all = |all: &mut [Counted], harness: &Harness, longest: &mut Duration| {
        let (before, began): (Vec<_>, _) = (all.iter().map(Counted::stored).collect(), Instant::now());
        let mut n = 0;
        while !went_on(all, &before) {
            assert!(began.elapsed() < Duration::from_secs(30), "somebody is held up");
            all.iter_mut().for_each(Counted::check);
            let asked = Instant::now();
            let _ = harness.is_known(n % 8 * 1_000_000 + before[n % before.len()]);
            *longest = asked.elapsed().max(*longest);
            n += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    let mut longest = Duration::ZERO;
    wait_for_all(&mut all, &harness, &mut longest);
    let stopped = all.remove(0);
    kill_process(Pid::from_child(&stopped.child), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let (stands, began, mut rounds, mut longest) = (stopped.stored(), Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(number(STOPPED, 5) as u64) {
        wait_for_all(&mut all, &harness, &mut longest);
        rounds += 1;
    }
    assert_eq!(stopped.stored(), stands);
    let stored: usize = all.iter().map(Counted::stored).sum();
    eprintln!(
        "{rounds} rounds in which all seven others went on, {stored} blocks; the longest lookup took {longest:?}"
    );
    kill_process(Pid::from_child(&stopped.child), Signal::CONT).unwrap();
    let mut all: Vec<_> = all.into_iter().chain([stopped]).collect();
    wait_for_all(&mut all, &harness, &mut longest);
    drop(all);
    assert_sound(root.path());
}

#[test]
fn two_pid_namespaces_share_a_pool() {
    let root = test_root();
    let prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let run = |i: usize| {
        let mut command = ROLES.process_under(&prefix, "store and load what was stored", root.path());
        command.env(FIRST, (i * 100_000).to_string()).env(BLOCKS, "1500");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let children = match (run(0), run(1)) {
        (Ok(a), Ok(b)) => [a, b],
        _ => return eprintln!("skipped: unshare can't be run"),
    };
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(1) {
            return eprintln!("skipped: no PID namespace can be made: {}", text.trim());
        }
        assert_good_end(&output);
    }
    assert_sound(root.path());
}

fn fill_the_disk(root: &Path) {
    // The cap is far beyond what the file system has.
    let harness = open_with(root, bounds(64));
    let blocks = 40 * SLOTS;
    for n in 0..blocks {
        harness.store_by(0, n).unwrap();
        assert!(load_block(&harness, n));
    }
    let known = (0..blocks).filter(|n| harness.is_known(*n)).count();
    assert!((3 * SLOTS..8 * SLOTS).contains(&known), "{known} blocks");
    let census = assert_sound(root);
    assert!(census.segments.iter().all(|segment| segment.header.is_ok()), "no segment is half made");
    // What others fill leaves what is there alone.
    drop(harness);
    let harness = open_with(root, bounds(64));
    assert_eq!((0..blocks).filter(|n| harness.is_known(*n)).count(), known);
}

#[test]
fn on_a_full_disk_room_is_made_within() {
    let root = test_root();
    ROLES.on_a_mount("mount -t tmpfs -o size=6500k none \"$ROOT\"", "fill the disk", root.path());
}

#[test]
fn room_is_left_for_others() {
    let root = test_root();
    let free = |path: &Path| {
        let space = rustix::fs::statvfs(path).unwrap();
        space.f_bavail * space.f_frsize
    };
    // All but 3 MiB or so of what is free now is to stay free.
    let floor = free(root.path()).saturating_sub(8 << 20);
    let bounds = Bounds { max_bytes: None, min_free_bytes: Some(floor), segment_bytes: Some(1 << 20) };
    let harness = open_with(root.path(), bounds);
    let mut refused = 0;
    for n in 0..40 * SLOTS {
        match harness.store_by(0, n) {
            Ok(_) => {}
            // Others fill the same disk, so there may be no room at all.
            Err(error) if matches!(error.kind(), ErrorKind::Capacity | ErrorKind::NoSpace) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if refused > 2 {
            return eprintln!("skipped: others have filled the disk meanwhile");
        }
    }
    assert!(fs::read_dir(root.path().join("kvtier-pool")).unwrap().count() < 30);
    assert_sound(root.path());
}
