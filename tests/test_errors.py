"""The exception tree."""

import inspect
import pickle
from pathlib import Path

import pytest

import kvtier
from kvtier import errors
from kvtier._kvtier import ERROR_KINDS
from kvtier.testing import make_key

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, kvtier.KvTierError) and value is not kvtier.KvTierError
]


def raised(kind: str, key: bytes = make_key(1), message: str = "says no") -> kvtier.KvTierError:
    """The error of a failed block of that kind."""
    result = kvtier.JobResult(1, "load", False, [], {key: kvtier.BlockError(kind, message)}, 0.0, 0)
    with pytest.raises(kvtier.KvTierError) as caught:
        result.raise_for_failures()
    return caught.value


def test_every_kind_of_the_core_has_a_class() -> None:
    assert set(errors.CLASS_OF_KIND) == set(ERROR_KINDS)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_an_exception_carries_its_facts(kind: str) -> None:
    error = raised(kind)
    assert type(error) is errors.CLASS_OF_KIND[kind]
    assert (str(error), error.kind, error.key, error.path) == ("says no", kind, make_key(1), None)


def test_a_kind_of_a_newer_core_is_still_an_error_of_kvtier() -> None:
    assert type(raised("new")) is kvtier.KvTierError
    assert raised("new").kind == "new"


def test_a_path_is_a_fact_too(identity: kvtier.Identity, rows: kvtier.HostRows, tmp_path: Path) -> None:
    with pytest.raises(kvtier.KvTierError) as caught:
        kvtier.open(tmp_path / "missing", identity=identity, rows=rows)
    assert caught.value.path == str(tmp_path / "missing")


@pytest.mark.parametrize("error_class", CLASSES)
def test_a_class_alone_implies_its_kind(error_class: type[kvtier.KvTierError]) -> None:
    error = error_class("message")
    assert errors.CLASS_OF_KIND[error.kind] is error_class
    assert (str(error), error.key, error.path) == ("message", None, None)


@pytest.mark.parametrize("error_class", CLASSES)
def test_every_class_is_public(error_class: type[kvtier.KvTierError]) -> None:
    assert getattr(kvtier, error_class.__name__) is error_class
    assert error_class.__name__ in kvtier.__all__


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_travel_between_processes(kind: str) -> None:
    error = raised(kind)
    error.path = "/path"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert type(copy) is type(error)
    assert (str(copy), copy.kind, copy.key, copy.path) == ("says no", kind, make_key(1), "/path")


def test_errors_are_what_python_calls_them() -> None:
    assert issubclass(kvtier.ConfigError, ValueError)
    assert issubclass(kvtier.InvalidInputError, ValueError)
    assert issubclass(kvtier.BlockNotFoundError, LookupError)
    assert issubclass(kvtier.DeadlineExceededError, TimeoutError)
