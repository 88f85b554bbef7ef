//! Opening a files store: what is said at once, what lies on disk afterwards, who else may have it open.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use kvtier::config::{DirectIo, Durability};
use kvtier::error::{Error, ErrorKind, Result};
use kvtier::identity::NamespaceKind;
use kvtier::io::ThreadEngine;
use kvtier::store::files::{FilesConfig, FilesStore, Publishing, Root};
use kvtier::store::url::format_of;
use kvtier::store::{BlockStore, Probed};
use places::{FilesPlace, Harness, Open, Place, key};

fn open_with(root: &Path, open: &Open, configure: impl Fn(&mut FilesConfig)) -> Result<FilesStore> {
    let namespace = open.namespace();
    let mut config = FilesConfig::new(format_of(&namespace));
    configure(&mut config);
    FilesStore::open(root, &namespace, config, ThreadEngine::start("test-io", 1).unwrap())
}

fn refusal(root: &Path, open: &Open, configure: impl Fn(&mut FilesConfig)) -> Error {
    match open_with(root, open, configure) {
        Ok(store) => panic!("{store:?} was opened"),
        Err(error) => error,
    }
}

#[test]
fn a_root_that_cannot_be_one_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    for (root, what) in
        [(&missing, "does not exist"), (&file, "not a directory"), (&file.join("below"), "not a directory")]
    {
        for read_only in [false, true] {
            let error = refusal(root, &Open::default(), |c| c.read_only = read_only);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(what), "{error}");
            assert_eq!(error.fact("path"), root.to_str());
        }
    }
    assert!(!missing.exists(), "a root is never made: a mount point that is not mounted must be noticed");
}

#[test]
fn a_directory_where_nothing_can_be_made_is_no_place_for_blocks() {
    let error = refusal(Path::new("/proc/self"), &Open::default(), |_| {});
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Permission), "{error}");
    assert!(error.to_string().contains("making a directory"), "{error}");
}

#[test]
fn a_root_may_be_relative_or_a_link() {
    let place = FilesPlace::new(|_| {});
    let link = place.root().join("link");
    fs::create_dir(place.root().join("real")).unwrap();
    symlink("real", &link).unwrap();
    let store = open_with(&link, &Open::default(), |_| {}).unwrap();
    assert!(store.info().place.starts_with(place.root().join("real").to_str().unwrap()), "{}", store.info().place);
    assert_eq!(store.info().kind, "files");
}

#[test]
fn the_layout_on_disk_is_the_documented_one() {
    for (kind, length) in [(NamespaceKind::Kvtier, 8192 + 4096), (NamespaceKind::Vllm, 8192)] {
        let place = FilesPlace::new(|_| {});
        let open = Open { kind, ..Open::default() };
        let harness = Harness::open(&place, &open, 1);
        harness.store(0).unwrap();
        let namespace = open.namespace();
        let config = fs::read_to_string(place.root().join(namespace.config_path())).unwrap();
        assert_eq!(config, namespace.config_text());
        let hex = key(0).to_string();
        let block = format!("{}/{}/{}_g3/{}.bin", namespace.blocks_dir(), &hex[..3], &hex[3..5], &hex[..64]);
        assert_eq!(fs::metadata(place.root().join(block)).unwrap().len(), length);
        let mut names: Vec<_> = fs::read_dir(place.root()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [namespace.base_dir(), namespace.blocks_dir()]);
    }
}

#[test]
fn another_identitys_config_is_refused_field_by_field() {
    for kind in [NamespaceKind::Kvtier, NamespaceKind::Vllm] {
        let place = FilesPlace::new(|_| {});
        let open = Open { kind, ..Open::default() };
        let namespace = open.namespace();
        drop(open_with(place.root(), &open, |_| {}).unwrap());
        let path = place.root().join(namespace.config_path());
        let edited = fs::read_to_string(&path).unwrap().replace("bfloat16", "float16");
        fs::write(&path, &edited).unwrap();
        for read_only in [false, true] {
            let error = refusal(place.root(), &open, |c| c.read_only = read_only);
            assert_eq!(error.kind(), ErrorKind::IdentityMismatch);
            let message = error.to_string();
            assert!(
                message.contains("dtype") && message.contains("bfloat16") && message.contains("float16"),
                "{message}"
            );
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), edited, "never overwritten");
    }
}

#[test]
fn a_config_that_says_nothing_is_an_error_in_kvtiers_own_namespaces() {
    let place = FilesPlace::new(|_| {});
    let open = Open::default();
    drop(open_with(place.root(), &open, |_| {}).unwrap());
    let path = place.root().join(open.namespace().config_path());
    let whole = fs::read(&path).unwrap();
    for damaged in [&b""[..], &whole[..whole.len() / 2], b"[1, 2]", b"\xff\xfe"] {
        fs::write(&path, damaged).unwrap();
        let error = refusal(place.root(), &open, |_| {});
        assert_eq!(error.kind(), ErrorKind::IdentityMismatch, "{error}");
        assert_eq!(fs::read(&path).unwrap(), damaged, "never overwritten");
    }
}

#[test]
fn a_half_written_config_of_the_engines_own_tier_delays_the_start_a_little_at_most() {
    let place = FilesPlace::new(|_| {});
    let open = Open { kind: NamespaceKind::Vllm, ..Open::default() };
    drop(open_with(place.root(), &open, |_| {}).unwrap());
    let path = place.root().join(open.namespace().config_path());
    let whole = fs::read(&path).unwrap();

    fs::write(&path, &whole[..10]).unwrap();
    let began = Instant::now();
    open_with(place.root(), &open, |_| {}).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "it must not keep an engine from starting");

    fs::write(&path, &whole[..10]).unwrap();
    let (late, rest) = (path.clone(), whole.clone());
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        fs::write(late, rest).unwrap();
    });
    let began = Instant::now();
    open_with(place.root(), &open, |_| {}).unwrap();
    assert!(began.elapsed() < Duration::from_millis(1500), "it goes on as soon as the file is whole");
    writer.join().unwrap();
}

#[test]
fn many_may_open_at_once_and_one_config_is_written() {
    let place = FilesPlace::new(|_| {});
    let (root, open) = (place.root(), Open::default());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| open_with(root, &open, |_| {}).unwrap());
        }
    });
    let namespace = open.namespace();
    assert_eq!(fs::read_to_string(place.root().join(namespace.config_path())).unwrap(), namespace.config_text());
    let beside: Vec<_> =
        fs::read_dir(place.root().join(namespace.base_dir())).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(beside.len(), 2, "config.json and the lock, and no leftovers: {beside:?}");
}

#[test]
fn an_exclusive_store_is_alone() {
    let place = FilesPlace::new(|_| {});
    let open = Open::default();
    let alone = open_with(place.root(), &open, |c| c.exclusive = true).unwrap();
    assert!(alone.info().exclusive);
    for exclusive in [true, false] {
        let error = refusal(place.root(), &open, |c| c.exclusive = exclusive);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.fact("holder").unwrap().contains(&std::process::id().to_string()), "{error}");
    }
    open_with(place.root(), &open, |c| c.read_only = true).expect("readers add nothing");
    open_with(place.root(), &Open { letter: 'b', ..open }, |c| c.exclusive = true).expect("another namespace");
    // A reset moves the blocks, not the lock.
    alone.reset().unwrap();
    assert_eq!(refusal(place.root(), &open, |_| {}).kind(), ErrorKind::Unavailable);
    assert_eq!(alone.close(Duration::from_secs(20)), 0);
    let shared = open_with(place.root(), &open, |_| {}).unwrap();
    assert!(!shared.info().exclusive);
    assert_eq!(refusal(place.root(), &open, |c| c.exclusive = true).kind(), ErrorKind::Unavailable);
    drop(shared);
    open_with(place.root(), &open, |c| c.exclusive = true).unwrap();
}

#[test]
fn beside_the_engines_own_tier_nobody_is_surely_alone() {
    let place = FilesPlace::new(|_| {});
    let open = Open { kind: NamespaceKind::Vllm, ..Open::default() };
    assert!(!open_with(place.root(), &open, |c| c.exclusive = true).unwrap().info().exclusive);
}

#[test]
fn a_store_opened_for_reading_leaves_no_trace() {
    let place = FilesPlace::new(|c| c.read_only = true);
    let harness = Harness::open(&place, &Open::default(), 1);
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Missing);
    assert!(matches!(harness.probe(0), Probed::Absent));
    assert_eq!(harness.scan(), []);
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
}

#[test]
fn modes_apply_to_files_and_directories_before_umask() {
    let place = FilesPlace::new(|c| (c.file_mode, c.dir_mode) = (0o640, 0o750));
    let open = Open::default();
    Harness::open(&place, &open, 1).store(0).unwrap();
    let block = place.path(&open, &key(0));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let umask = umask();
    assert_eq!(mode(&block), 0o640 & !umask);
    assert_eq!(mode(block.parent().unwrap()), 0o750 & !umask);
    assert_eq!(mode(&place.blocks_dir(&open)), 0o750 & !umask);
    assert_eq!(mode(&place.root().join(open.namespace().config_path())), 0o640 & !umask);
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn every_durability_stores_and_loads() {
    for durability in [Durability::None, Durability::Data, Durability::Full] {
        for way in Publishing::ALL {
            let place = FilesPlace::new(move |c| (c.durability, c.publishing) = (durability, Some(way)));
            let harness = Harness::open(&place, &Open::default(), 2);
            for n in 0..2 {
                harness.store(n).unwrap();
                harness.clear(n);
                harness.load(n).unwrap();
                harness.assert_row_is_block(n);
            }
        }
    }
}

#[test]
fn what_a_dead_writer_left_goes_when_a_store_opens_and_nothing_else() {
    let place = FilesPlace::new(|_| {});
    let open = Open::default();
    drop(open_with(place.root(), &open, |_| {}).unwrap());
    let unfinished = place.blocks_dir(&open).join(".tmp");
    fs::create_dir_all(&unfinished).unwrap();
    fs::write(unfinished.join("dead"), "half a block").unwrap();
    fs::write(unfinished.join("live"), "half a block").unwrap();
    let live = fs::File::open(unfinished.join("live")).unwrap();
    rustix::fs::flock(&live, rustix::fs::FlockOperation::LockExclusive).unwrap();
    drop(open_with(place.root(), &open, |c| c.read_only = true).unwrap());
    assert_eq!(place.unfinished(&open), 2, "a reader removes nothing");
    drop(open_with(place.root(), &open, |_| {}).unwrap());
    assert!(!unfinished.join("dead").exists());
    assert!(unfinished.join("live").exists());
}

#[test]
fn what_was_reset_is_deleted_in_the_background_by_whoever_comes() {
    let place = FilesPlace::new(|_| {});
    let open = Open::default();
    // As if the process that has reset had been killed right after.
    let leaf = place.root().join(".kvtier-trash/0-0-0/abc/de_g0");
    fs::create_dir_all(&leaf).unwrap();
    fs::write(leaf.join("block.bin"), "x").unwrap();
    let harness = Harness::open(&place, &open, 4);
    (0..4).for_each(|n| assert!(harness.store(n).is_ok()));
    harness.reset().unwrap();
    let trash = place.root().join(".kvtier-trash");
    let give_up = Instant::now() + Duration::from_secs(20);
    while fs::read_dir(&trash).unwrap().count() > 0 {
        assert!(Instant::now() < give_up, "the trash is not emptied");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn direct_io_that_is_demanded_and_impossible_is_refused() {
    let Ok(root) = tempfile::tempdir_in("/dev/shm") else { return };
    let error = refusal(root.path(), &Open::default(), |c| c.direct_io = DirectIo::On);
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("direct_io"), "{error}");
    open_with(root.path(), &Open::default(), |_| {}).unwrap();
}

#[test]
fn a_report_says_what_a_root_can_and_leaves_it_as_it_was() {
    let place = FilesPlace::new(|_| {});
    let report = Root::inspect(place.root()).unwrap();
    assert_eq!(report.path, fs::canonicalize(place.root()).unwrap());
    assert!(report.total_bytes > report.free_bytes && report.free_bytes > 0 && !report.read_only);
    let abilities = report.abilities.unwrap();
    assert!(Publishing::ALL.contains(&abilities.publishing));
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0);
    assert_eq!(Root::inspect(&place.root().join("missing")).unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn something_that_is_no_file_is_neither_read_nor_removed() {
    let place = FilesPlace::new(|_| {});
    let open = Open::default();
    let harness = Harness::open(&place, &open, 1);
    let path = place.path(&open, &key(0));
    fs::create_dir_all(&path).unwrap();
    assert!(matches!(harness.probe(0), Probed::Absent));
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(harness.store(0).unwrap_err().kind(), ErrorKind::Foreign);
    assert!(path.is_dir());
    fs::remove_dir(&path).unwrap();
    // Opening a FIFO would wait for a writer that never comes.
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Foreign);
    assert!(path.exists());
}

#[test]
fn a_root_that_vanishes_fails_blocks_and_comes_back_with_the_next_store() {
    let place = FilesPlace::new(|_| {});
    let open = Open::default();
    let harness = Harness::open(&place, &open, 1);
    harness.store(0).unwrap();
    // An operator clears the namespace by hand.
    fs::remove_dir_all(place.blocks_dir(&open)).unwrap();
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Missing);
    harness.store(0).unwrap();
    harness.load(0).unwrap();
    assert!(fs::metadata(place.path(&open, &key(0))).unwrap().nlink() == 1);
    // And the whole root.
    fs::remove_dir_all(place.root()).unwrap();
    assert_eq!(harness.load(0).unwrap_err().kind(), ErrorKind::Missing);
    let error = harness.store(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("root directory was removed"), "{error}");
}
