//! Everything that a server or a network can do to a block on its way to or from a bucket: each operation ends in time,
//! with one answer of the right kind, its neighbours don't notice, and nothing is published half.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]

mod places;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::buffer::{Gate, HostRows, RowLease};
use kvtier::config::{ObjectConfig, Secret, UploadChecksum};
use kvtier::engine::{Engine, EngineConfig, JobKind, JobResult};
use kvtier::error::{Error, ErrorKind, Result};
use kvtier::index::{Lookup, RequestId};
use kvtier::store::{BlockStore, Probed};
use places::bucket::BucketPlace;
use places::stub::{Answer, Fault, TlsFront, What};
use places::{Harness, Open, Place, key, payload_of};

const PAYLOAD: usize = 1 << 20;

fn open() -> Open {
    Open { payload_bytes: PAYLOAD, ..Open::default() }
}

/// A place whose store gives up soon.
fn hasty() -> BucketPlace {
    BucketPlace::stub().with(|config| {
        config.retries = 1;
        config.read_timeout = Duration::from_millis(300);
        config.connect_timeout = Duration::from_millis(300);
    })
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|e| e.kind())
}

/// Each fault, what it makes of a store and of a load when it doesn't pass.
fn faults() -> Vec<(&'static str, What, ErrorKind, ErrorKind)> {
    use ErrorKind::{Io, Missing, Permission, Timeout, Unavailable};
    let answer = |status, code| What::Answer(Answer::error(status, code));
    let redirect = Answer::error(307, "TemporaryRedirect").with("location", "http://127.0.0.1:1/elsewhere");
    vec![
        ("403", answer(403, "AccessDenied"), Permission, Permission),
        ("401", answer(401, "Unauthorized"), Permission, Permission),
        ("404 key", answer(404, "NoSuchKey"), Missing, Missing),
        ("404 bucket", answer(404, "NoSuchBucket"), Unavailable, Unavailable),
        ("409", answer(409, "OperationAborted"), Io, Io),
        ("429", answer(429, "TooManyRequests"), Io, Io),
        ("500", answer(500, "InternalError"), Io, Io),
        ("503", answer(503, "SlowDown"), Io, Io),
        ("redirect", What::Answer(redirect), Unavailable, Unavailable),
        ("moved", answer(301, "PermanentRedirect"), Unavailable, Unavailable),
        ("reset before", What::ResetBefore, Io, Io),
        ("reset in the request", What::ResetInRequest(100_000), Io, Io),
        ("reset after", What::ResetAfter, Io, Io),
        ("stall", What::Stall, Timeout, Timeout),
        ("stall in the request", What::StallInRequest(100_000), Timeout, Timeout),
        ("stall after", What::StallAfter, Timeout, Timeout),
    ]
}

#[test]
fn every_fault_of_a_store_fails_it_in_time_and_it_alone() {
    for (what, fault, kind_of_store, _) in faults() {
        let place = hasty();
        let harness = Harness::open(&place, &open(), 3);
        let name = place.name(&open(), &key(1));
        place.server().inject(Fault { name: name.clone(), ..Fault::always("PUT", fault.clone()) });
        let begun = Instant::now();
        assert_eq!(kind(harness.store(1)), Some(kind_of_store), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{what}: {:?}", begun.elapsed());
        for n in [0, 2] {
            assert_eq!(harness.store(n).unwrap().bytes, PAYLOAD as u64, "{what}: a neighbour");
        }
        let stored = place.server().bucket().objects.get(&name).map(|object| object.bytes.len());
        let whole = PAYLOAD + 4096;
        match fault {
            // Carried out, and nobody heard of it.
            What::ResetAfter | What::StallAfter => assert_eq!(stored, Some(whole), "{what}"),
            _ => assert_eq!(stored, None, "{what}: nothing is published half"),
        }
        place.server().clear_faults();
        assert!(harness.store(1).is_ok(), "{what}: afterwards all is well");
        harness.clear(1);
        harness.load(1).unwrap();
        harness.assert_row_is_block(1);
    }
}

#[test]
fn every_fault_of_a_load_fails_it_in_time_and_it_alone() {
    for (what, fault, _, kind_of_load) in faults().into_iter().chain([
        ("reset in the answer", What::ResetInAnswer(100_000), ErrorKind::Io, ErrorKind::Io),
        ("truncated", What::Truncated(100_000), ErrorKind::Io, ErrorKind::Io),
        ("truncated at once", What::Truncated(0), ErrorKind::Io, ErrorKind::Io),
        ("stall in the answer", What::StallInAnswer(100_000), ErrorKind::Timeout, ErrorKind::Timeout),
    ]) {
        if matches!(fault, What::ResetInRequest(_) | What::StallInRequest(_)) {
            continue;
        }
        let place = hasty();
        let harness = Harness::open(&place, &open(), 3);
        (0..3).for_each(|n| assert!(harness.store(n).is_ok()));
        let name = place.name(&open(), &key(1));
        let before = place.server().bucket().objects[&name].clone();
        place.server().inject(Fault { name: name.clone(), ..Fault::always("GET", fault) });
        let begun = Instant::now();
        assert_eq!(kind(harness.load(1)), Some(kind_of_load), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{what}: {:?}", begun.elapsed());
        for n in [0, 2] {
            harness.clear(n);
            harness.load(n).unwrap();
            harness.assert_row_is_block(n);
        }
        assert_eq!(place.server().bucket().objects[&name].etag, before.etag, "{what}: nothing is removed for that");
        place.server().clear_faults();
        harness.clear(1);
        harness.load(1).unwrap();
        harness.assert_row_is_block(1);
    }
}

#[test]
fn what_passes_is_repeated_and_succeeds() {
    for (what, fault, kind, _) in faults() {
        if matches!(kind, ErrorKind::Permission | ErrorKind::Missing | ErrorKind::Unavailable) {
            continue;
        }
        let place = hasty();
        let harness = Harness::open(&place, &open(), 1);
        place.server().inject(Fault { name: ".bin".into(), ..Fault::once("PUT", fault.clone()) });
        let stored = harness.store(0).unwrap();
        assert_eq!(stored.bytes, PAYLOAD as u64, "{what}: also when a lost answer was about this very block");
        place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", fault) });
        harness.clear(0);
        harness.load(0).unwrap();
        harness.assert_row_is_block(0);
    }
}

#[test]
fn bodies_that_lie_are_never_a_block() {
    let flip = |mut answer: Answer| {
        answer.body[1000] ^= 1;
        answer
    };
    let longer = |mut answer: Answer| {
        answer.body.push(0);
        answer
    };
    let place = hasty();
    let harness = Harness::open(&place, &open(), 1);
    harness.store(0).unwrap();
    // Once is a bad day of the network: asked again, the block is good.
    for change in [flip, longer] {
        place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", What::Changed(change)) });
        harness.clear(0);
        harness.load(0).unwrap();
        harness.assert_row_is_block(0);
    }
    place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", What::Overlong) });
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
    // Twice with one ETag is proof.
    place.server().inject(Fault { name: ".bin".into(), times: 2, ..Fault::once("GET", What::Changed(flip)) });
    assert_eq!(kind(harness.load(0)), Some(ErrorKind::Checksum));
    assert!(matches!(harness.probe(0), Probed::Absent), "removed, so that the next store heals it");
}

#[test]
fn a_block_that_was_replaced_meanwhile_is_left_alone() {
    let other_etag = |mut answer: Answer| {
        answer.body[1000] ^= 1;
        for (name, value) in &mut answer.headers {
            if *name == "etag" {
                *value = "\"another\"".into();
            }
        }
        answer
    };
    let place = hasty();
    let harness = Harness::open(&place, &open(), 1);
    harness.store(0).unwrap();
    place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", What::Changed(other_etag)) });
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
    // The second reading fails as well, under yet another ETag: which object is bad can't be said.
    let flip = |mut answer: Answer| {
        answer.body[1000] ^= 1;
        answer
    };
    place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", What::Changed(other_etag)) });
    place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", What::Changed(flip)) });
    assert_eq!(kind(harness.load(0)), Some(ErrorKind::Checksum));
    assert!(matches!(harness.probe(0), Probed::Present(_)));
    // It is replaced between the proof and the removal.
    let damaged = {
        let mut bytes = place.read(&open(), &key(0)).unwrap();
        bytes[0] ^= 1;
        bytes
    };
    place.write(&open(), &key(0), Some(&damaged));
    let removal = Fault::once("DELETE", What::Answer(Answer::error(412, "PreconditionFailed")));
    place.server().inject(removal);
    assert_eq!(kind(harness.load(0)), Some(ErrorKind::Checksum));
    assert!(matches!(harness.probe(0), Probed::Present(_)));
    let condition = place.server().shared.log.lock().unwrap().iter().any(|line| line.starts_with("DELETE"));
    assert!(condition, "the removal was tried");
}

#[test]
fn a_retry_after_is_obeyed() {
    let place = BucketPlace::stub();
    let harness = Harness::open(&place, &open(), 1);
    let busy = Answer::error(503, "SlowDown").with("retry-after", "1");
    place.server().inject(Fault { name: ".bin".into(), ..Fault::once("PUT", What::Answer(busy)) });
    let begun = Instant::now();
    harness.store(0).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn slow_is_not_silent() {
    let place = hasty();
    let harness = Harness::open(&place, &open(), 1);
    harness.store(0).unwrap();
    // A second in all, and never longer than the server may be silent.
    place.server().inject(Fault {
        name: ".bin".into(),
        ..Fault::always("GET", What::Trickle(PAYLOAD / 10, Duration::from_millis(100)))
    });
    harness.clear(0);
    let begun = Instant::now();
    harness.load(0).unwrap();
    assert!(begun.elapsed() > Duration::from_millis(900));
    harness.assert_row_is_block(0);
}

#[test]
fn errors_say_what_a_person_needs_and_no_secret() {
    let place = hasty().with(|config| config.session_token = Some(Secret::new("hush-token")));
    let harness = Harness::open(&place, &open(), 1);
    place.server().inject(Fault::always("GET", What::Answer(Answer::error(403, "AccessDenied"))));
    let error = harness.load(0).unwrap_err().to_string();
    for part in [
        "GET: the server answered 403 AccessDenied: because AccessDenied",
        "request_id=request-4711",
        "bucket=bucket",
        &format!("object={}", place.name(&open(), &key(0))),
        &format!("endpoint={}", place.server().endpoint()),
        "addressing=path",
    ] {
        assert!(error.contains(part), "{part:?} in {error}");
    }
    for secret in ["kvtier-secret", "hush-token", "Signature"] {
        assert!(!error.contains(secret), "{error}");
    }
}

fn opening(place: &BucketPlace) -> Error {
    place.try_open(&open()).map(drop).unwrap_err()
}

#[test]
fn what_is_wrong_with_a_bucket_is_told_at_the_start() {
    let answered = |status, code: &str| {
        let place = hasty();
        place.server().inject(Fault::always("GET", What::Answer(Answer::error(status, code))));
        opening(&place)
    };
    for (status, code, kind, hint) in [
        (404, "NoSuchBucket", ErrorKind::Unavailable, "the bucket does not exist there"),
        (403, "InvalidAccessKeyId", ErrorKind::Permission, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch", ErrorKind::Permission, "SignatureDoesNotMatch"),
        (301, "PermanentRedirect", ErrorKind::Unavailable, "in another region"),
        (400, "AuthorizationHeaderMalformed", ErrorKind::Unavailable, "in another region"),
    ] {
        let error = answered(status, code);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    // Nobody there, and somebody there who doesn't speak TLS.
    let mut place = hasty();
    place.config.endpoint = Some("http://127.0.0.1:1".into());
    let error = opening(&place);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("refused"), "{error}");
    let plain = place_over_tls();
    let error = opening(&plain);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("endpoint=https://127.0.0.1"), "{error}");
}

fn place_over_tls() -> BucketPlace {
    let place = hasty();
    let endpoint = place.server().endpoint().replace("http:", "https:");
    place.with(|config| config.endpoint = Some(endpoint))
}

#[test]
fn an_authority_must_be_trusted_and_name_the_host() {
    for (host, trusted, problem) in [
        ("127.0.0.1", false, Some("certificate")),
        ("elsewhere.example", true, Some("certificate")),
        ("127.0.0.1", true, None),
    ] {
        let place = hasty();
        let front = TlsFront::start(place.server(), host);
        let place = place.with(|config| {
            config.endpoint = Some(front.endpoint());
            config.allow_http = false;
            config.ca_bundle = trusted.then(|| front.authority().to_owned());
        });
        if let Some(part) = problem {
            let error = opening(&place);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(part), "{error}");
        } else {
            let harness = Harness::open(&place, &open(), 1);
            harness.store(0).unwrap();
            harness.clear(0);
            harness.load(0).unwrap();
            harness.assert_row_is_block(0);
        }
    }
}

#[test]
fn the_start_need_not_wait_for_the_check() {
    let place = hasty().with(|config| config.startup_check = false);
    place.server().inject(Fault::always("GET", What::Stall));
    let begun = Instant::now();
    let store = place.try_open(&open()).unwrap();
    assert!(begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
    assert_eq!(store.close(Duration::from_secs(5)), 0);
}

#[test]
fn a_namespace_of_another_identity_is_refused() {
    let place = hasty();
    drop(place.try_open(&open()).unwrap());
    let namespace = open().namespace();
    let name = place.server().bucket().objects.keys().find(|name| name.ends_with("config.json")).unwrap().clone();
    assert!(name.ends_with(&namespace.config_path()), "{name}");
    let other = Open { letter: 'b', ..open() }.namespace().config_text();
    place.server().bucket().put(&name, other.into_bytes());
    assert_eq!(opening(&place).kind(), ErrorKind::IdentityMismatch);
    // Found in the background, it stops all work.
    let lazy = place.with(|config| config.startup_check = false);
    let harness = Harness::open(&lazy, &open(), 1);
    let give_up = Instant::now() + Duration::from_secs(5);
    while kind(harness.store(0)) != Some(ErrorKind::IdentityMismatch) {
        assert!(Instant::now() < give_up);
    }
}

#[test]
fn a_missing_bucket_is_no_miss() {
    let place = hasty();
    let harness = Harness::open(&place, &open(), 1);
    assert!(matches!(harness.probe(0), Probed::Absent));
    // An answer to HEAD does not tell which of both is missing; what was seen lately is believed.
    place.server().inject(Fault::always("HEAD", What::Answer(Answer::error(404, "NoSuchBucket"))));
    assert!(matches!(harness.probe(0), Probed::Absent));
}

#[test]
fn a_deadline_ends_a_stalled_store_and_its_row_is_free() {
    for (what, fault) in [
        ("stall", What::Stall),
        ("stall in the request", What::StallInRequest(100_000)),
        ("stall after", What::StallAfter),
        ("early answer", What::EarlyAnswer(Answer::error(503, "SlowDown"))),
    ] {
        // The server's silence alone would not end it in time.
        let place = BucketPlace::stub();
        let (engine, rows) = engine_at(&place, Duration::from_millis(400));
        place.server().inject(Fault { name: ".bin".into(), ..Fault::always("PUT", fault) });
        let begun = Instant::now();
        engine.submit(JobKind::Store, 1, vec![key(0)], vec![0]).unwrap();
        let result = take(&engine);
        assert!(begun.elapsed() < Duration::from_millis(1400), "{what}: {:?}", begun.elapsed());
        assert_eq!(result.failures[0].1.kind(), ErrorKind::Timeout, "{what}");
        // The row is the engine's again.
        fill(&rows, 0, 99);
        place.server().clear_faults();
        std::thread::sleep(Duration::from_millis(100));
        for object in place.server().bucket().objects.values().filter(|object| object.bytes.len() > PAYLOAD) {
            assert!(object.bytes[..PAYLOAD] == payload_of(0, PAYLOAD), "{what}: nothing of its new content went out");
        }
        engine.submit(JobKind::Store, 2, vec![key(1)], vec![0]).unwrap();
        assert!(take(&engine).is_success(), "{what}: the next job works");
    }
}

#[test]
fn a_row_is_not_given_back_while_a_connection_still_sends_it() {
    // Far more than the system takes at once, and a server that has answered and reads no more: the request is over,
    // and the connection is not.
    let open = Open { payload_bytes: 64 << 20, ..open() };
    let place = BucketPlace::stub().with(|config| config.part_bytes = 1 << 30);
    let rows = HostRows::new(1, open.payload_bytes).unwrap();
    let config = EngineConfig { store_timeout: Duration::from_millis(500), ..EngineConfig::default() };
    let engine = Engine::start(place.open(&open), rows.region(), config).unwrap();
    let early = What::EarlyAnswer(Answer::error(403, "AccessDenied"));
    place.server().inject(Fault { name: ".bin".into(), ..Fault::always("PUT", early) });
    let begun = Instant::now();
    engine.submit(JobKind::Store, 1, vec![key(0)], vec![0]).unwrap();
    let result = take(&engine);
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(result.failures.len(), 1);
}

#[test]
fn a_deadline_ends_a_stalled_load_and_nothing_lands_late() {
    for fault in [What::Stall, What::StallInAnswer(500_000), What::Trickle(50_000, Duration::from_millis(50))] {
        let place = BucketPlace::stub();
        let (engine, rows) = engine_at(&place, Duration::from_millis(400));
        engine.submit(JobKind::Store, 1, vec![key(0)], vec![0]).unwrap();
        assert!(take(&engine).is_success());
        place.server().inject(Fault { name: ".bin".into(), ..Fault::always("GET", fault) });
        let begun = Instant::now();
        engine.submit(JobKind::Load, 2, vec![key(0)], vec![1]).unwrap();
        let result = take(&engine);
        assert!(begun.elapsed() < Duration::from_millis(1400), "{:?}", begun.elapsed());
        assert_eq!(result.failures[0].1.kind(), ErrorKind::Timeout);
        fill(&rows, 1, 99);
        std::thread::sleep(Duration::from_millis(300));
        let mut row = vec![0; PAYLOAD];
        RowLease::unbounded(&rows.region(), 1).unwrap().enter().unwrap().copy_to(&mut row).unwrap();
        assert!(row == payload_of(99, PAYLOAD));
        place.server().clear_faults();
        engine.submit(JobKind::Load, 3, vec![key(0)], vec![1]).unwrap();
        assert!(take(&engine).is_success());
    }
}

#[test]
fn a_shutdown_ends_what_is_under_way() {
    // A connection whose peer takes no bytes ends when the system has waited for that long.
    let place = BucketPlace::stub().with(|config| config.read_timeout = Duration::from_secs(2));
    let (engine, _rows) = engine_at(&place, Duration::from_secs(60));
    engine.submit(JobKind::Store, 1, vec![key(7)], vec![0]).unwrap();
    assert!(take(&engine).is_success());
    place.server().inject(Fault { name: ".bin".into(), ..Fault::always("", What::Stall) });
    engine.submit(JobKind::Store, 2, vec![key(0), key(1)], vec![0, 1]).unwrap();
    engine.submit(JobKind::Load, 3, vec![key(7)], vec![2]).unwrap();
    engine.lookup(&key(9), Some(RequestId(1))).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    assert_eq!(engine.shutdown(Duration::from_millis(200), || false).unwrap(), 0, "nothing is stuck");
    assert!(begun.elapsed() < Duration::from_millis(1400), "{:?}", begun.elapsed());
    let mut results = engine.poll().unwrap();
    results.sort_by_key(|result| result.job_id);
    let failed: Vec<_> = results.iter().map(|r| (r.job_id, r.failures.len())).collect();
    assert_eq!(failed, [(2, 2), (3, 1)]);
    drop(engine);
    let give_up = Instant::now() + Duration::from_secs(5);
    while place.server().clients() > 0 {
        assert!(Instant::now() < give_up, "a closed store keeps no connection");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_failed_upload_in_parts_is_aborted() {
    let in_parts = |place: BucketPlace| place.with(|config| config.part_bytes = 256 << 10);
    for (fault, kind_of_store) in [
        (What::Answer(Answer::error(403, "AccessDenied")), ErrorKind::Permission),
        (What::StallInRequest(1000), ErrorKind::Timeout),
    ] {
        let place = in_parts(hasty());
        let harness = Harness::open(&place, &open(), 1);
        place.server().inject(Fault { name: ".bin".into(), after: 2, ..Fault::always("PUT", fault) });
        assert_eq!(kind(harness.store(0)), Some(kind_of_store));
        harness.raw_store().close(Duration::from_secs(5));
        assert_eq!(place.unfinished(&open()), 0);
        assert!(place.read(&open(), &key(0)).is_none());
    }
    // Also when the deadline came first, and when the answer to the last step was lost.
    let place = in_parts(BucketPlace::stub());
    let (engine, _rows) = engine_at(&place, Duration::from_millis(400));
    place.server().inject(Fault { name: ".bin".into(), after: 2, ..Fault::always("PUT", What::Stall) });
    engine.submit(JobKind::Store, 1, vec![key(0)], vec![0]).unwrap();
    assert!(!take(&engine).is_success());
    engine.shutdown(Duration::from_secs(5), || false).unwrap();
    assert_eq!(place.unfinished(&open()), 0);
    let place = in_parts(hasty());
    let harness = Harness::open(&place, &open(), 1);
    place.server().inject(Fault { name: ".bin".into(), after: 1, ..Fault::once("POST", What::ResetAfter) });
    assert_eq!(harness.store(0).unwrap().bytes, PAYLOAD as u64);
    harness.clear(0);
    harness.load(0).unwrap();
    harness.assert_row_is_block(0);
}

#[test]
fn ranges_of_a_replaced_object_are_never_mixed() {
    let place = hasty().with(|config| config.part_bytes = 256 << 10);
    let harness = Harness::open(&place, &open(), 1);
    harness.store(0).unwrap();
    let other_etag = |mut answer: Answer| {
        for (name, value) in &mut answer.headers {
            if *name == "etag" {
                *value = "\"another\"".into();
            }
        }
        answer
    };
    place.server().inject(Fault { name: ".bin".into(), after: 1, ..Fault::once("GET", What::Changed(other_etag)) });
    let error = harness.load(0).unwrap_err();
    assert!(error.to_string().contains("replaced while it was read"), "{error}");
    harness.load(0).unwrap();
}

#[test]
fn a_hedged_load_takes_the_first_answer() {
    let place = BucketPlace::stub().with(|config| config.hedge_quantile = Some(0.9));
    let harness = Harness::open(&place, &open(), 1);
    harness.store(0).unwrap();
    for _ in 0..40 {
        harness.load(0).unwrap();
    }
    place.server().inject(Fault { name: ".bin".into(), ..Fault::once("GET", What::Late(Duration::from_secs(5))) });
    harness.clear(0);
    let begun = Instant::now();
    harness.load(0).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    harness.assert_row_is_block(0);
}

#[test]
fn rates_are_limits() {
    let place = BucketPlace::stub().with(|config| {
        config.upload_rate = Some(4 << 20);
        config.download_rate = Some(8 << 20);
    });
    let harness = Harness::open(&place, &open(), 5);
    let begun = Instant::now();
    (0..5).for_each(|n| assert!(harness.store(n).is_ok()));
    assert!(begun.elapsed() > Duration::from_millis(980), "4 of 5 MiB at 4 MiB/s: {:?}", begun.elapsed());
    let begun = Instant::now();
    (0..5).for_each(|n| assert!(harness.load(n).is_ok()));
    assert!(begun.elapsed() > Duration::from_millis(480), "4 of 5 MiB at 8 MiB/s: {:?}", begun.elapsed());
}

#[test]
fn a_store_lists_what_is_there_at_its_start() {
    let place = BucketPlace::stub();
    let (engine, rows) = engine_at(&place, Duration::from_secs(5));
    let keys: Vec<_> = (0..20).map(key).collect();
    engine.submit(JobKind::Store, 1, keys.clone(), (0..20).map(|n| n % 4).collect()).unwrap();
    assert!(take(&engine).is_success());
    drop((engine, rows));
    let place = place.with(|config| config.list_at_start = true);
    let (engine, _rows) = engine_at(&place, Duration::from_secs(5));
    let give_up = Instant::now() + Duration::from_secs(5);
    while engine.gauges().unwrap().resident_blocks < 20 {
        assert!(Instant::now() < give_up);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(keys.iter().all(|key| engine.lookup(key, None).unwrap() == Lookup::Hit));
    assert_eq!(place.server().requests("HEAD", ".bin"), 0);
}

/// An engine over four rows, row n filled with block n's payload.
fn engine_at(place: &BucketPlace, timeout: Duration) -> (Engine, HostRows) {
    let rows = HostRows::new(4, PAYLOAD).unwrap();
    (0..4).for_each(|n| fill(&rows, n, n));
    let config = EngineConfig { load_timeout: timeout, store_timeout: timeout, ..EngineConfig::default() };
    (Engine::start(place.open(&open()), rows.region(), config).unwrap(), rows)
}

fn fill(rows: &HostRows, row: usize, n: usize) {
    let lease = RowLease::new(rows.region(), row, Arc::new([Gate::default()]), 0).unwrap();
    lease.enter().unwrap().copy_from(&payload_of(n, PAYLOAD)).unwrap();
}

fn take(engine: &Engine) -> JobResult {
    assert!(engine.wait(None, Some(Duration::from_secs(20))).unwrap(), "a job has no result");
    let mut results = engine.poll().unwrap();
    assert_eq!(results.len(), 1, "each job has one result");
    results.remove(0)
}

#[test]
fn options_are_checked_before_anything_is_sent() {
    let refused = |change: fn(&mut ObjectConfig)| opening(&hasty().with(change)).to_string();
    assert!(refused(|c| c.secret_key = None).contains("access_key without secret_key"));
    let both = refused(|c| {
        c.secret_key = None;
        c.ca_bundle = Some("/nowhere/ca.pem".into());
        c.credentials_file = Some("/x".into());
    });
    for part in ["3 options", "access_key without", "ca_bundle=\"/nowhere/ca.pem\"", "credentials_file"] {
        assert!(both.contains(part), "{part} in {both}");
    }
}

#[test]
fn uploads_go_without_a_checksum_to_a_server_that_refuses_it() {
    let checksummed = |config: &mut ObjectConfig| config.upload_checksum = UploadChecksum::Crc64Nvme;
    for parts in [false, true] {
        let open = Open { payload_bytes: if parts { 9 << 20 } else { 65536 }, ..open() };
        let place = BucketPlace::stub().with(checksummed);
        let harness = Harness::open(&place, &open, 2);
        let refused = Answer::error(400, "InvalidRequest");
        let method = if parts { "POST" } else { "PUT" };
        place.server().inject(Fault { name: place.name(&open, &key(0)), ..Fault::once(method, What::Answer(refused)) });
        for n in 0..2 {
            assert_eq!(harness.store(n).unwrap().bytes, open.payload_bytes as u64);
            harness.clear(n);
            harness.load(n).unwrap();
            harness.assert_row_is_block(n);
        }
        let checksums = place.server().shared.checksums.lock().unwrap().clone();
        assert_eq!(checksums.iter().filter(|had_one| **had_one).count(), 1, "{checksums:?}");
    }
}

#[test]
fn a_wrong_checksum_is_no_reason_to_send_none() {
    let place = BucketPlace::stub().with(|config| config.upload_checksum = UploadChecksum::Crc64Nvme);
    let harness = Harness::open(&place, &open(), 2);
    place.server().inject(Fault {
        name: place.name(&open(), &key(0)),
        ..Fault::once("PUT", What::Answer(Answer::error(400, "BadDigest")))
    });
    assert_eq!(kind(harness.store(0)), Some(ErrorKind::Io));
    harness.store(1).unwrap();
    assert_eq!(place.server().shared.checksums.lock().unwrap().as_slice(), [true, true]);
}
