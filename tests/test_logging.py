"""The core's log records in Python's logging."""

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvtier
from kvtier.testing import Faults, make_key


@pytest.fixture
def url() -> str:
    return "memory://"


def wait_until(reached: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.001)


def probe(tier: kvtier.TierManager, number: int) -> None:
    """Asks for a block until the answer is there."""
    wait_until(lambda: tier.lookup(make_key(number)) is not kvtier.Lookup.RETRY)


def test_a_warning_of_an_io_thread_reaches_its_logger(
    faulty: kvtier.TierManager, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.inject("probe", "fail", kind="io")
    before = time.time()
    probe(faulty, 1)
    faulty.get_finished_jobs()
    (record,) = caplog.records
    assert record.name == "kvtier.engine"
    assert record.levelno == logging.WARNING
    assert "injected fault" in record.getMessage()
    assert record.threadName.startswith("kvtier-io") if record.threadName else False
    assert before - 1 < record.created < time.time() + 1


def test_io_threads_do_not_wait_for_the_interpreter(
    faulty: kvtier.TierManager, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.inject("store", "panic", times=50)
    faulty.submit_store(1, [make_key(i) for i in range(50)], range(50))
    until = time.monotonic() + 60
    while faults.pending:  # this thread holds the interpreter's lock all the time, but for the instant of a switch
        assert time.monotonic() < until

    def all_came() -> bool:
        faulty.get_finished_jobs()
        return sum(record.levelno == logging.ERROR for record in caplog.records) == 50

    wait_until(all_came)


def test_levels_follow_python(faulty: kvtier.TierManager, faults: Faults, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kvtier")
    time.sleep(1.1)
    faulty.get_finished_jobs()
    faults.inject("probe", "fail", kind="io")
    probe(faulty, 1)
    faulty.get_finished_jobs()
    assert caplog.records == []
    caplog.set_level(logging.WARNING, "kvtier")
    time.sleep(1.1)
    faulty.get_finished_jobs()
    faults.inject("probe", "fail", kind="io")
    probe(faulty, 2)
    faulty.get_finished_jobs()
    assert len(caplog.records) == 1


def test_more_records_than_may_wait_are_counted(
    faulty: kvtier.TierManager, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.inject("store", "panic", times=64 * 20)
    keys = [make_key(i) for i in range(64 * 20)]
    faulty.submit_store(1, keys, [i % 64 for i in range(len(keys))])
    wait_until(lambda: not faults.pending)
    assert caplog.records == []

    def all_are_accounted_for() -> bool:
        faulty.get_finished_jobs()
        messages = [record.getMessage() for record in caplog.records]
        lost = [message for message in messages if "were dropped" in message]
        return len(messages) - len(lost) + sum(int(message.split()[0]) for message in lost) == len(keys)

    wait_until(all_are_accounted_for)
    assert len(caplog.records) < len(keys)


def test_a_handler_may_use_the_tier(faulty: kvtier.TierManager, faults: Faults) -> None:
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            faulty.lookup(make_key(5))
            seen.append(record.getMessage())

    handler = Handler()
    logging.getLogger("kvtier").addHandler(handler)
    try:
        faults.inject("probe", "fail", kind="io")
        probe(faulty, 1)
        faulty.get_finished_jobs()
    finally:
        logging.getLogger("kvtier").removeHandler(handler)
    assert len(seen) == 1


def test_what_a_signal_handler_raises_while_a_record_is_handled_is_raised_by_the_call(
    faulty: kvtier.TierManager, faults: Faults
) -> None:
    class Handler(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            signal.raise_signal(signal.SIGINT)

    handler = Handler()
    logging.getLogger("kvtier").addHandler(handler)
    try:
        faults.inject("probe", "fail", kind="io")
        with pytest.raises(KeyboardInterrupt):
            wait_until(lambda: faulty.lookup(make_key(1)) is None)
    finally:
        logging.getLogger("kvtier").removeHandler(handler)


def test_what_happens_to_many_blocks_is_said_once_in_a_while(
    identity: kvtier.Identity, rows: kvtier.HostRows, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [make_key(number) for number in range(64)]
    with kvtier.open(tmp_path, identity=identity, rows=rows) as tier:
        tier.submit_store(1, keys, range(64))
        tier.drain_jobs()
        tier.get_finished_jobs()
        for path in tmp_path.rglob("*.bin"):
            path.write_bytes(b"damaged")
        tier.submit_load(2, keys, range(64))
        tier.drain_jobs()
        assert {error.kind for error in tier.get_finished_jobs()[0].failures.values()} == {"short"}
        tier.stats()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "removed a block that failed verification (short)"
    ]


def test_a_handler_that_fails_harms_nobody(
    faulty: kvtier.TierManager, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)

    class Fails(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError(record.getMessage())

    broken = Fails()
    logging.getLogger("kvtier.engine").addFilter(broken)
    try:
        faults.inject("probe", "fail", kind="io")
        probe(faulty, 1)
        faulty.get_finished_jobs()
    finally:
        logging.getLogger("kvtier.engine").removeFilter(broken)
    assert len(reported) == 1
