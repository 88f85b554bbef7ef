//! What a files store does when the world changes in the middle of an operation: files that are replaced, devices that
//! fail, jobs that run out of time, namespaces that are reset. Each moment is chosen, not hoped for.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use kvtier::buffer::{Expiry, Gate, HostRows, IoMemory, Region, RowLease};
use kvtier::error::{ErrorKind, Result};
use kvtier::identity::NamespaceKind;
use kvtier::io::{Completion, IoEngine, Task, Transfer, Transferred};
use kvtier::store::Probed;
use kvtier::store::files::{FilesConfig, FilesStore, Publishing};
use places::{FilesPlace, Harness, Open, Place, key};

type Before = Box<dyn FnOnce() + Send>;
type Event = Box<dyn FnOnce(&mut Transferred) + Send>;

/// An engine, what happens before a transfer, and what happens after each, before its completion is told.
struct EventfulIo {
    inner: Arc<dyn IoEngine>,
    before: Arc<Mutex<Option<Before>>>,
    events: Arc<Mutex<VecDeque<Event>>>,
}

impl IoEngine for EventfulIo {
    fn name(&self) -> &'static str {
        "eventful"
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn threads(&self) -> usize {
        self.inner.threads()
    }

    fn spawn(&self, task: Task) {
        self.inner.spawn(task);
    }

    fn submit(&self, transfer: Transfer, done: Completion) {
        let before = self.before.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        let events = Arc::clone(&self.events);
        let eventful = move |mut ended: Transferred| {
            let event = events.lock().unwrap().pop_front();
            if let Some(event) = event {
                event(&mut ended);
            }
            done.call(ended);
        };
        self.inner.submit(transfer, Completion::new(eventful));
    }

    fn register(&self, _: &Arc<Region>) -> Result<()> {
        Ok(())
    }

    fn stop(&self, timeout: Duration) -> usize {
        self.inner.stop(timeout)
    }
}

/// A files store on which events can be scheduled.
struct Stage {
    place: FilesPlace,
    open: Open,
    configure: fn(&mut FilesConfig),
    before: Arc<Mutex<Option<Before>>>,
    events: Arc<Mutex<VecDeque<Event>>>,
}

impl Stage {
    fn new(configure: fn(&mut FilesConfig)) -> Self {
        let (before, events) = (Arc::default(), Arc::default());
        Self { place: FilesPlace::new(configure), open: Open::default(), configure, before, events }
    }

    fn harness(&self) -> Harness {
        self.try_harness().unwrap()
    }

    fn try_harness(&self) -> Result<Harness> {
        let namespace = self.open.namespace();
        let mut config = FilesConfig::new(kvtier::store::url::format_of(&namespace));
        (self.configure)(&mut config);
        let inner = places::io(2);
        let io = Arc::new(EventfulIo { inner, before: Arc::clone(&self.before), events: Arc::clone(&self.events) });
        let store = FilesStore::open(self.place.root(), &namespace, config, io)?;
        Ok(Harness::with(Arc::new(store), &HostRows::new(4, self.open.payload_bytes)?.region()))
    }

    /// What happens before the next transfer, when its file is open already.
    fn first(&self, event: impl FnOnce() + Send + 'static) {
        *self.before.lock().unwrap() = Some(Box::new(event));
    }

    fn will_happen_first(&self) -> bool {
        self.before.lock().unwrap().is_some()
    }

    /// What happens after the next transfer for which nothing is scheduled yet.
    fn then(&self, event: impl FnOnce(&mut Transferred) + Send + 'static) {
        self.events.lock().unwrap().push_back(Box::new(event));
    }

    fn then_nothing(&self) {
        self.then(|_| {});
    }

    fn all_happened(&self) -> bool {
        self.events.lock().unwrap().is_empty()
    }

    fn path(&self, n: usize) -> PathBuf {
        self.place.path(&self.open, &key(n))
    }

    /// Bytes of block 0 with one flipped.
    fn damaged(&self) -> Vec<u8> {
        let mut bytes = fs::read(self.path(0)).unwrap();
        bytes[100] ^= 1;
        bytes
    }

    fn assert_tidy(&self) {
        assert_eq!(self.place.unfinished(&self.open), 0, "nothing is left in .tmp");
    }
}

/// Puts a new file under the name of another, as a store after an eviction would.
fn replace(path: &Path, bytes: &[u8]) -> u64 {
    let aside = path.with_extension("new");
    fs::write(&aside, bytes).unwrap();
    fs::rename(&aside, path).unwrap();
    fs::metadata(path).unwrap().ino()
}

#[test]
fn a_file_that_was_replaced_after_it_failed_is_read_and_good() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    let (path, good) = (stage.path(0), fs::read(stage.path(0)).unwrap());
    fs::write(&path, stage.damaged()).unwrap();
    let inode = Arc::new(Mutex::new(0));
    let (seen, new) = (Arc::clone(&inode), path.clone());
    stage.then(move |_| *seen.lock().unwrap() = replace(&new, &good));
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
    assert_eq!(fs::metadata(&path).unwrap().ino(), *inode.lock().unwrap());
    assert!(stage.all_happened());
    stage.assert_tidy();
}

#[test]
fn a_file_that_was_removed_after_it_failed_is_missing() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    fs::write(stage.path(0), stage.damaged()).unwrap();
    let path = stage.path(0);
    stage.then(move |_| fs::remove_file(path).unwrap());
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Missing, "no corruption is counted");
    stage.assert_tidy();
}

#[test]
fn a_file_that_is_good_at_the_second_look_stays() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    let (path, good) = (stage.path(0), fs::read(stage.path(0)).unwrap());
    let inode = fs::metadata(&path).unwrap().ino();
    fs::write(&path, stage.damaged()).unwrap();
    let same = path.clone();
    // Rewritten in place, as a file that is recycled for the same block.
    stage.then(move |_| fs::OpenOptions::new().write(true).open(same).unwrap().write_all_at(&good, 0).unwrap());
    harness.load(0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    stage.assert_tidy();
}

fn replaced_just_before_the_removal(configure: fn(&mut FilesConfig)) -> (Stage, u64) {
    let stage = Stage::new(configure);
    let harness = stage.harness();
    harness.store(0).unwrap();
    let (path, good) = (stage.path(0), fs::read(stage.path(0)).unwrap());
    fs::write(&path, stage.damaged()).unwrap();
    let inode = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&inode);
    stage.then_nothing();
    stage.then(move |_| *seen.lock().unwrap() = replace(&path, &good));
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Checksum);
    assert!(stage.all_happened());
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
    let inode = *inode.lock().unwrap();
    (stage, inode)
}

#[test]
fn a_file_that_got_the_name_just_before_the_removal_gets_it_back() {
    let (stage, inode) = replaced_just_before_the_removal(|_| {});
    assert_eq!(fs::metadata(stage.path(0)).unwrap().ino(), inode, "the same file under the same name");
    stage.assert_tidy();
}

#[test]
fn a_good_file_never_stays_in_quarantine() {
    let (stage, inode) = replaced_just_before_the_removal(|config| config.quarantine = true);
    assert_eq!(fs::metadata(stage.path(0)).unwrap().ino(), inode);
    let quarantine = stage.place.blocks_dir(&stage.open).join(".quarantine");
    assert_eq!(fs::read_dir(quarantine).unwrap().count(), 0);
}

#[test]
fn quarantine_keeps_the_evidence_and_says_why() {
    let stage = Stage::new(|config| config.quarantine = true);
    let harness = stage.harness();
    harness.store(0).unwrap();
    let damaged = stage.damaged();
    fs::write(stage.path(0), &damaged).unwrap();
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Checksum);
    let kept: Vec<_> = fs::read_dir(stage.place.blocks_dir(&stage.open).join(".quarantine")).unwrap().collect();
    assert_eq!(kept.len(), 1);
    let kept = kept[0].as_ref().unwrap().path();
    assert!(fs::read(&kept).unwrap() == damaged);
    let name = kept.file_name().unwrap().to_str().unwrap();
    assert!(name.contains(".checksum.") && name.contains("_g3_"), "{name}");
    assert!(matches!(harness.probe(0), Probed::Absent));
    assert_eq!(harness.scan(), [], "what is in quarantine is no block");
    harness.store(0).unwrap();
    harness.load(0).unwrap();
}

#[test]
fn files_that_replace_each_other_for_ever_do_not_hold_a_load_for_ever() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    let damaged = stage.damaged();
    fs::write(stage.path(0), &damaged).unwrap();
    for _ in 0..20 {
        let (path, damaged) = (stage.path(0), damaged.clone());
        stage.then(move |_| {
            replace(&path, &damaged);
        });
    }
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Missing);
    assert!(stage.path(0).exists(), "none of them failed twice");
}

#[test]
fn a_failing_device_costs_the_load_and_not_the_file() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    for (errno, kind) in [(5, ErrorKind::Io), (116, ErrorKind::Io), (13, ErrorKind::Permission), (110, ErrorKind::Io)] {
        stage.then(move |ended| ended.result = Err(io::Error::from_raw_os_error(errno)));
        let error = harness.load(0).unwrap_err();
        assert_eq!((error.kind(), error.os_code()), (kind, Some(errno)));
        assert_eq!(error.fact("path"), Some(fs::canonicalize(stage.path(0)).unwrap().to_str().unwrap()));
        assert_eq!(error.fact("key"), Some(key(0).to_string().as_str()));
        harness.clear(0);
        harness.load(0).unwrap();
        harness.assert_row_is_block(0);
    }
}

#[test]
fn a_store_that_fails_publishes_nothing_and_leaves_nothing() {
    for way in Publishing::ALL {
        let stage = Stage::new(match way {
            Publishing::LinkDescriptor => |c| c.publishing = Some(Publishing::LinkDescriptor),
            Publishing::LinkProc => |c| c.publishing = Some(Publishing::LinkProc),
            Publishing::Rename => |c| c.publishing = Some(Publishing::Rename),
            Publishing::LinkName => |c| c.publishing = Some(Publishing::LinkName),
        });
        let harness = stage.harness();
        for (errno, kind) in [(5, ErrorKind::Io), (28, ErrorKind::NoSpace), (122, ErrorKind::NoSpace)] {
            stage.then(move |ended| ended.result = Err(io::Error::from_raw_os_error(errno)));
            assert_eq!(harness.store(0).unwrap_err().kind(), kind, "{way:?}");
            assert!(matches!(harness.probe(0), Probed::Absent));
            stage.assert_tidy();
        }
        harness.store(0).unwrap();
        harness.load(0).unwrap();
    }
}

#[test]
fn a_stuck_write_keeps_the_exclusive_claim_until_it_ends() {
    let stage = Stage::new(|config| config.exclusive = true);
    let harness = stage.harness();
    let (release, stuck) = mpsc::channel::<()>();
    stage.first(move || stuck.recv().unwrap());
    let (send, answer) = mpsc::channel();
    harness.spawn_store(key(0), harness.lease(0), move |stored| send.send(stored).unwrap());
    while stage.will_happen_first() {
        std::thread::yield_now();
    }
    let store = Arc::clone(harness.raw_store());
    assert_eq!(store.close(Duration::from_millis(50)), 1, "one operation is stuck");
    assert!(stage.try_harness().is_err(), "it may still publish, so nobody else may think to be alone");
    release.send(()).unwrap();
    // Threads go on with it; a ring that was stopped begins nothing.
    let stored = answer.recv().unwrap();
    assert_eq!(store.close(Duration::from_secs(20)), 0);
    let next = stage.try_harness().unwrap();
    assert_eq!(next.load(0).is_ok(), stored.is_ok());
}

#[test]
fn a_panic_after_the_write_leaves_nothing_and_the_threads_go_on() {
    let stage = Stage::new(|config| config.publishing = Some(Publishing::Rename));
    let harness = stage.harness();
    for _ in 0..4 {
        stage.then(|_| std::panic::resume_unwind(Box::new("on purpose")));
        assert_eq!(harness.store(0).unwrap_err().kind(), ErrorKind::Internal, "the answer is not lost");
    }
    stage.assert_tidy();
    harness.store(0).unwrap();
}

/// A lease whose clock the test is.
fn timed(harness: &Harness, row: usize) -> (RowLease, Arc<[Gate]>) {
    let gates: Arc<[Gate]> = Arc::new([Gate::default()]);
    (RowLease::new(Arc::clone(harness.region()), row, Arc::clone(&gates), 0).unwrap(), gates)
}

#[test]
fn a_store_whose_time_runs_out_while_it_writes_publishes_nothing() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    let (lease, gates) = timed(&harness, 0);
    // The row belongs to the engine again at once, and may change while it is still being read.
    stage.then(move |_| assert_eq!(gates[0].expire(), Expiry::Final));
    assert_eq!(harness.store_lease(key(0), lease).unwrap_err().kind(), ErrorKind::Timeout);
    assert!(stage.all_happened());
    assert!(matches!(harness.probe(0), Probed::Absent));
    stage.assert_tidy();
}

#[test]
fn a_read_into_the_row_withholds_the_result_until_it_ends() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    let (lease, gates) = timed(&harness, 0);
    stage.then(move |_| {
        assert_eq!(gates[0].expire(), Expiry::Deferred, "the row is being written to");
    });
    assert_eq!(harness.load_lease(key(0), lease).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_read_into_scratch_never_touches_a_row_after_its_time() {
    let stage = Stage::new(|config| config.reads_into_rows = Some(false));
    let harness = stage.harness();
    harness.store(0).unwrap();
    harness.clear(0);
    let (lease, gates) = timed(&harness, 0);
    stage.then(move |_| {
        assert_eq!(gates[0].expire(), Expiry::Final, "the row is the engine's again at once");
    });
    assert_eq!(harness.load_lease(key(0), lease).unwrap_err().kind(), ErrorKind::Timeout);
    assert!(harness.row(0).iter().all(|b| *b == 0));
}

#[test]
fn a_store_that_began_before_a_reset_is_not_seen_after_it() {
    for way in [Publishing::LinkDescriptor, Publishing::Rename] {
        let stage = Stage::new(match way {
            Publishing::Rename => |c| c.publishing = Some(Publishing::Rename),
            _ => |_| {},
        });
        let [harness, other] = [stage.harness(), stage.harness()];
        harness.store(1).unwrap();
        let store = Arc::clone(other.raw_store());
        stage.then(move |_| store.reset().unwrap());
        match harness.store(0) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Reset),
        }
        for n in 0..2 {
            assert!(matches!(harness.probe(n), Probed::Absent), "{way:?}: block {n}");
            assert_eq!(harness.load(n).unwrap_err().kind(), ErrorKind::Missing);
        }
        harness.store(0).unwrap();
        harness.load(0).unwrap();
    }
}

#[test]
fn a_store_meets_another_ones_block_and_leaves_it() {
    let stage = Stage::new(|_| {});
    let [harness, other] = [stage.harness(), stage.harness()];
    let inode = Arc::new(Mutex::new(0));
    let (path, seen) = (stage.path(0), Arc::clone(&inode));
    stage.then(move |_| {
        other.store(0).unwrap();
        *seen.lock().unwrap() = fs::metadata(path).unwrap().ino();
    });
    stage.then_nothing();
    assert_eq!(harness.store(0).unwrap().bytes, 0);
    assert_eq!(fs::metadata(stage.path(0)).unwrap().ino(), *inode.lock().unwrap());
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
}

#[test]
fn a_store_replaces_a_file_of_the_wrong_length_that_came_while_it_wrote() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    let path = stage.path(0);
    stage.then(move |_| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"half a block").unwrap();
    });
    assert!(harness.store(0).unwrap().bytes > 0);
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
    stage.assert_tidy();
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_short() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    for n in 0..2 {
        harness.store(n).unwrap();
    }
    let (path, whole) = (stage.path(0), fs::metadata(stage.path(0)).unwrap().len());
    stage.first(move || fs::OpenOptions::new().write(true).open(path).unwrap().set_len(whole - 1).unwrap());
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Short);
    assert!(matches!(harness.probe(0), Probed::Absent));
    harness.clear(1);
    harness.load(1).unwrap();
    harness.assert_row_is_block(1);
}

/// An engine that writes to a row while a load has it, against what it has promised.
fn disturb_the_row_after_each_read(stage: &Stage, harness: &Harness) {
    for _ in 0..8 {
        let region = Arc::clone(harness.region());
        stage.then(move |_| {
            if let Ok(mut row) = RowLease::unbounded(&region, 0).unwrap().enter() {
                row.copy_from(&vec![0xEE; region.row_bytes()]).unwrap();
            }
        });
    }
}

#[test]
fn a_row_that_is_changed_while_it_is_filled_costs_no_file() {
    let stage = Stage::new(|config| config.reads_into_rows = Some(true));
    let harness = stage.harness();
    harness.store(0).unwrap();
    let good = fs::read(stage.path(0)).unwrap();
    disturb_the_row_after_each_read(&stage, &harness);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
    assert!(fs::read(stage.path(0)).unwrap() == good, "only what was read into memory of kvtier's own is a proof");
    stage.assert_tidy();
}

#[test]
fn a_link_is_no_block_wherever_it_leads() {
    for quarantine in [false, true] {
        let stage = Stage::new(if quarantine { |c| c.quarantine = true } else { |_| {} });
        let harness = stage.harness();
        for n in 0..2 {
            harness.store(n).unwrap();
        }
        let elsewhere = stage.place.root().join("elsewhere");
        fs::rename(stage.path(0), &elsewhere).unwrap();
        for target in [elsewhere.as_path(), &stage.path(1), Path::new("nowhere"), Path::new("/dev/zero")] {
            std::os::unix::fs::symlink(target, stage.path(0)).unwrap();
            assert!(matches!(harness.probe(0), Probed::Absent), "{target:?}");
            assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Foreign, "{target:?}");
            assert_eq!(harness.store(0).unwrap_err().kind(), ErrorKind::Foreign, "{target:?}");
            assert_eq!(harness.scan(), [key(1)]);
            assert_eq!(fs::read_link(stage.path(0)).unwrap(), target, "left for whoever made it");
            fs::remove_file(stage.path(0)).unwrap();
        }
        harness.load(1).unwrap();
        stage.assert_tidy();
    }
}

#[test]
fn a_file_with_names_in_two_namespaces_loses_the_wrong_one_only() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    harness.store(0).unwrap();
    let other = Open { letter: 'z', ..stage.open };
    let wrong = stage.place.path(&other, &key(0));
    fs::create_dir_all(wrong.parent().unwrap()).unwrap();
    fs::hard_link(stage.path(0), &wrong).unwrap();
    let stranger = Harness::open(&stage.place, &other, 1);
    assert_eq!(stranger.load(0).unwrap_err().kind(), ErrorKind::WrongIdentity);
    assert!(!wrong.exists());
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
}

#[test]
fn a_raw_block_that_shrinks_while_it_is_read_is_short_and_not_what_was_in_the_row() {
    for into_row in [true, false] {
        let configure: fn(&mut FilesConfig) =
            if into_row { |c| c.reads_into_rows = Some(true) } else { |c| c.reads_into_rows = Some(false) };
        let mut stage = Stage::new(configure);
        stage.open.kind = NamespaceKind::Vllm;
        let harness = stage.harness();
        harness.store(0).unwrap();
        let (path, good) = (stage.path(0), fs::read(stage.path(0)).unwrap());
        let shrinks = path.clone();
        stage.first(move || fs::OpenOptions::new().write(true).open(shrinks).unwrap().set_len(4096).unwrap());
        // Whole again before the second look, which reads all of it.
        stage.then(move |_| fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&good, 0).unwrap());
        harness.clear(0);
        harness.load(0).unwrap();
        harness.assert_row_is_block(0);
        assert!(stage.all_happened());
    }
}

#[test]
fn a_transfer_that_ends_early_without_an_error_makes_no_block() {
    let stage = Stage::new(|_| {});
    let harness = stage.harness();
    let lease = harness.lease(0);
    stage.then(move |ended| ended.memory = IoMemory::source(lease));
    assert_eq!(harness.store(0).unwrap_err().kind(), ErrorKind::Io);
    assert!(matches!(harness.probe(0), Probed::Absent));
    stage.assert_tidy();
}
