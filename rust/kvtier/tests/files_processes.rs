//! Several processes on one root: together, killed, without descriptors, without permission, on other file systems.
//!
//! The other processes play [`ROLES`].

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]
#![allow(clippy::print_stderr, reason = "what is skipped says why")]

mod places;
mod roles;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::buffer::HostRows;
use kvtier::error::ErrorKind;
use kvtier::store::Probed;
use kvtier::store::files::{FilesConfig, FilesStore, Publishing};
use kvtier::store::url::format_of;
use places::{Harness, Open, key, test_root};
use roles::{FIRST, Roles, assert_good_end, kill, number, ready, wait_until_ready};
use rustix::process::{Resource, Rlimit, Signal, geteuid, getrlimit, kill_process, setrlimit};

/// Parts that other processes play on a root.
const ROLES: Roles = Roles(&[
    ("store a hundred", store_a_hundred),
    ("store until killed", store_until_killed),
    ("store slowly until told to end", store_slowly),
    ("run out of descriptors", run_out_of_descriptors),
    ("be nobody", be_nobody),
    ("fill the disk", fill_the_disk),
    ("go there and back", go_there_and_back),
    ("find it read-only", find_it_read_only),
]);

const WAY: &str = "KVTIER_TEST_PUBLISHING";

#[test]
fn another_process() {
    ROLES.play();
}

const OPEN: Open = Open { letter: 'p', payload_bytes: 64 << 10, ..Open::DEFAULT };

fn try_open(root: &Path, configure: impl Fn(&mut FilesConfig)) -> kvtier::error::Result<Harness> {
    let namespace = OPEN.namespace();
    let mut config = FilesConfig::new(format_of(&namespace));
    let way = std::env::var(WAY).ok();
    config.publishing = Publishing::ALL.into_iter().find(|p| Some(p.as_str()) == way.as_deref());
    configure(&mut config);
    let store = FilesStore::open(root, &namespace, config, places::io(2))?;
    Ok(Harness::with(Arc::new(store), &HostRows::new(4, OPEN.payload_bytes)?.region()))
}

fn open(root: &Path) -> Harness {
    try_open(root, |_| {}).unwrap()
}

fn path(root: &Path, n: usize) -> PathBuf {
    root.join(OPEN.namespace().blocks_dir()).join(key(n).path())
}

fn unfinished(root: &Path) -> usize {
    fs::read_dir(root.join(OPEN.namespace().blocks_dir()).join(".tmp")).map_or(0, Iterator::count)
}

/// Stores block `n` by way of row 0.
fn store_block(harness: &Harness, n: usize) -> kvtier::error::Result<u64> {
    harness.store_by(0, n).map(|stored| stored.bytes)
}

fn assert_block_loads(harness: &Harness, n: usize) {
    assert!(harness.load_by(1, n).unwrap(), "block {n}");
}

fn store_a_hundred(root: &Path) {
    let harness = open(root);
    let first = number(FIRST, 0);
    for i in 0..100 {
        store_block(&harness, (first + i) % 100).unwrap();
    }
}

#[test]
fn sixteen_processes_that_store_the_same_keys_make_one_file_of_each() {
    for way in [Publishing::LinkDescriptor, Publishing::Rename, Publishing::LinkName] {
        let root = test_root();
        let spawn = |i: usize| {
            let mut command = ROLES.process("store a hundred", root.path());
            // Neighbours begin at neighbouring keys, so that they meet.
            command.env(WAY, way.as_str()).env(FIRST, (i / 4 * 25).to_string());
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let mut children: Vec<_> = (0..16).map(spawn).collect();
        let mut inodes = HashMap::new();
        let mut watch = || {
            for n in 0..100 {
                if let Ok(found) = fs::metadata(path(root.path(), n)) {
                    assert_eq!(*inodes.entry(n).or_insert(found.ino()), found.ino(), "block {n} was replaced");
                }
            }
        };
        while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
            watch();
        }
        watch();
        assert!(children.iter_mut().all(|child| child.wait().unwrap().success()), "{way:?}: all succeed");
        assert_eq!(inodes.len(), 100);
        assert_eq!(unfinished(root.path()), 0, "{way:?}");
        let harness = open(root.path());
        assert_eq!(harness.scan().len(), 100);
        (0..100).for_each(|n| assert_block_loads(&harness, n));
        assert_eq!(unfinished(root.path()), 0);
    }
}

fn store_until_killed(root: &Path) {
    let harness = open(root);
    let first = number(FIRST, 0);
    ready();
    for n in first..first + 1000 {
        store_block(&harness, n).unwrap();
    }
    std::thread::sleep(Duration::from_secs(60));
}

fn store_slowly(root: &Path) {
    let harness = open(root);
    let first = number(FIRST, 0);
    ready();
    for n in first.. {
        if root.join("end").exists() {
            return;
        }
        assert!(store_block(&harness, n).unwrap() > 0);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_writer_killed_at_any_moment_leaves_whole_blocks_and_others_go_on() {
    const ROUNDS: usize = 50;
    const LIVE: usize = 1_000_000;
    let root = test_root();
    let start = |role, way: Publishing, first: usize| {
        let mut command = ROLES.process(role, root.path());
        let mut child =
            command.env(WAY, way.as_str()).env(FIRST, first.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let output = wait_until_ready(&mut child);
        (child, output)
    };
    let (mut live, _live_output) = start("store slowly until told to end", Publishing::Rename, LIVE);
    let mut stored = 0;
    let mut left_behind = 0;
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    for round in 0..ROUNDS {
        let way = [Publishing::Rename, Publishing::LinkDescriptor, Publishing::LinkName][round % 3];
        let first = round * 1000;
        let (mut writer, _output) = start("store until killed", way, first);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(random >> 48 & 0x3FFF));
        kill(&mut writer);

        left_behind += unfinished(root.path());
        let harness = open(root.path());
        let numbers: HashMap<_, _> = (first..first + 1000).map(|n| (key(n), n)).collect();
        for n in harness.scan().iter().filter_map(|key| numbers.get(key)) {
            assert_block_loads(&harness, *n);
            stored += 1;
        }
        // The live writer has at most one unfinished file at a time, and it goes on with it. What a ring was writing for
        // the killed one lands after its death; until then the kernel holds the file, and it counts as being written.
        let give_up = Instant::now() + Duration::from_secs(20);
        while unfinished(root.path()) > 1 {
            assert!(Instant::now() < give_up, "what the killed writer left stays");
            drop(open(root.path()));
        }
        assert!(live.try_wait().unwrap().is_none(), "the live writer goes on");
    }
    fs::write(root.path().join("end"), "").unwrap();
    assert!(live.wait().unwrap().success());
    assert!(stored > ROUNDS, "writers got far enough to be killed in the middle: {stored} blocks");
    eprintln!("{stored} whole blocks by killed writers, who left up to {left_behind} unfinished files behind");
    assert_eq!(unfinished(root.path()), 0);
}

fn run_out_of_descriptors(root: &Path) {
    let harness = open(root);
    store_block(&harness, 0).unwrap();
    let before = getrlimit(Resource::Nofile);
    // The lowest number that is free is the first that can't be had.
    let free = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&fs::File::open("/").unwrap())).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(free), maximum: before.maximum }).unwrap();
    let load = harness.load_lease(key(0), harness.lease(1)).unwrap_err();
    let store = store_block(&harness, 1).unwrap_err();
    let probe = harness.probe(0);
    setrlimit(Resource::Nofile, before).unwrap();
    for error in [load, store] {
        assert_eq!((error.kind(), error.os_code()), (ErrorKind::Io, Some(24)), "{error}");
    }
    assert!(matches!(probe, Probed::Present(_)), "a probe needs no descriptor");
    assert!(path(root, 0).exists() && unfinished(root) == 0);
    assert_block_loads(&harness, 0);
    assert!(store_block(&harness, 1).unwrap() > 0);
}

#[test]
fn without_descriptors_operations_fail_and_files_stay() {
    let root = test_root();
    assert_good_end(&ROLES.process("run out of descriptors", root.path()).output().unwrap());
}

const NOBODY: u32 = 65_534;

fn be_nobody(root: &Path) {
    assert_ne!(geteuid().as_raw(), 0);
    let refused = try_open(root, |_| {}).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Permission, "{refused}");
    assert!(refused.to_string().contains("read_only=True"), "{refused}");
    let harness = try_open(root, |c| c.read_only = true).unwrap();
    assert_block_loads(&harness, 0);
    let error = harness.load_lease(key(1), harness.lease(1)).unwrap_err();
    assert_eq!((error.kind(), error.os_code()), (ErrorKind::Permission, Some(13)), "{error}");
    let closed = root.join("closed");
    assert_eq!(try_open(&closed.join("below"), |c| c.read_only = true).err().unwrap().kind(), ErrorKind::Permission);
}

#[test]
fn what_may_not_be_read_or_written_is_said_and_kept() {
    if !geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let root = test_root();
    let harness = open(root.path());
    for n in 0..2 {
        store_block(&harness, n).unwrap();
    }
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(path(root.path(), 1), fs::Permissions::from_mode(0o000)).unwrap();
    fs::create_dir_all(root.path().join("closed/below")).unwrap();
    fs::set_permissions(root.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = ROLES.process("be nobody", root.path());
    command.uid(NOBODY).gid(NOBODY);
    if command.args(["--list"]).output().is_ok_and(|o| o.status.success()) {
        let mut command = ROLES.process("be nobody", root.path());
        command.uid(NOBODY).gid(NOBODY);
        assert_good_end(&command.output().unwrap());
        assert!(path(root.path(), 1).exists());
    } else {
        eprintln!("skipped: this test program can't be run by nobody where it lies");
    }
}

fn fill_the_disk(root: &Path) {
    let harness = open(root);
    let mut stored = Vec::new();
    let error = loop {
        match store_block(&harness, stored.len()) {
            Ok(_) => stored.push(stored.len()),
            Err(error) => break error,
        }
        assert!(stored.len() < 1000, "the disk is never full");
    };
    assert_eq!((error.kind(), error.os_code()), (ErrorKind::NoSpace, Some(28)), "{error}");
    assert!(!path(root, stored.len()).exists() && unfinished(root) == 0);
    let assert_all_load = |harness: &Harness| (0..stored.len()).for_each(|n| assert_block_loads(harness, n));
    assert_all_load(&harness);
    // A restart on a full disk still loads.
    drop(harness);
    let harness = open(root);
    assert_all_load(&harness);
    assert_eq!(store_block(&harness, stored.len()).unwrap_err().kind(), ErrorKind::NoSpace);
    for n in 0..2 {
        fs::remove_file(path(root, n)).unwrap();
    }
    assert!(store_block(&harness, stored.len()).unwrap() > 0);
    assert_block_loads(&harness, stored.len());
}

#[test]
fn on_a_full_disk_stores_fail_cleanly_and_loads_go_on() {
    let root = test_root();
    ROLES.on_a_mount("mount -t tmpfs -o size=1m none \"$ROOT\"", "fill the disk", root.path());
}

fn go_there_and_back(root: &Path) {
    let harness = open(root);
    for n in 0..20 {
        assert!(store_block(&harness, n).unwrap() > 0);
    }
    drop(harness);
    let harness = open(root);
    (0..20).for_each(|n| assert_block_loads(&harness, n));
    let mut damaged = fs::read(path(root, 7)).unwrap();
    damaged[5] ^= 1;
    fs::write(path(root, 7), damaged).unwrap();
    let error = harness.load_lease(key(7), harness.lease(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checksum);
    assert!(!path(root, 7).exists() && unfinished(root) == 0);
    harness.reset().unwrap();
    assert_eq!(harness.scan(), []);
}

#[test]
fn an_overlay_will_do() {
    let root = test_root();
    for dir in ["lower", "upper", "work", "merged"] {
        fs::create_dir(root.path().join(dir)).unwrap();
    }
    let mount = "cd \"$ROOT/..\" && mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged";
    ROLES.on_a_mount(mount, "go there and back", &root.path().join("merged"));
}

#[test]
fn memory_will_do() {
    let root = test_root();
    ROLES.on_a_mount("mount -t tmpfs none \"$ROOT\"", "go there and back", root.path());
}

fn find_it_read_only(root: &Path) {
    let refused = try_open(root, |_| {}).err().unwrap();
    assert_eq!((refused.kind(), refused.os_code()), (ErrorKind::Permission, Some(30)), "{refused}");
    assert!(refused.to_string().contains("read_only=True"), "{refused}");
    let harness = try_open(root, |c| c.read_only = true).unwrap();
    assert_block_loads(&harness, 0);
    assert_eq!(harness.load_lease(key(1), harness.lease(1)).unwrap_err().kind(), ErrorKind::Missing);
}

#[test]
fn a_read_only_file_system_is_for_loads() {
    let root = test_root();
    store_block(&open(root.path()), 0).unwrap();
    let mount = "mount --bind \"$ROOT\" \"$ROOT\" && mount -o remount,ro,bind \"$ROOT\"";
    ROLES.on_a_mount(mount, "find it read-only", root.path());
}

#[test]
fn a_stopped_process_holds_up_nobody() {
    let root = test_root();
    let mut command = ROLES.process("store slowly until told to end", root.path());
    let mut child = command.env(FIRST, "0").stdout(Stdio::piped()).spawn().unwrap();
    let _output = wait_until_ready(&mut child);
    let pid = rustix::process::Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    let harness = open(root.path());
    for n in 500_000..500_020 {
        assert!(store_block(&harness, n).unwrap() > 0);
        assert_block_loads(&harness, n);
    }
    kill_process(pid, Signal::CONT).unwrap();
    fs::write(root.path().join("end"), "").unwrap();
    assert!(child.wait().unwrap().success());
}
