"""The exception tree."""

import inspect
import pickle

import pytest

import kvtier
from kvtier import errors
from kvtier._kvtier import ERROR_KINDS

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, kvtier.KvTierError) and value is not kvtier.KvTierError
]


def test_every_kind_of_the_core_has_a_class() -> None:
    assert set(errors._CLASSES) == set(ERROR_KINDS)


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_an_exception_carries_its_facts(kind: str) -> None:
    error = errors.error_of_kind(kind, "message", b"key", "/path")
    assert isinstance(error, kvtier.KvTierError)
    assert (str(error), error.kind, error.key, error.path) == ("message", kind, b"key", "/path")


def test_a_kind_of_a_newer_core_is_still_an_error_of_kvtier() -> None:
    assert type(errors.error_of_kind("new", "message")) is kvtier.KvTierError


@pytest.mark.parametrize("error_class", CLASSES)
def test_a_class_alone_implies_its_kind(error_class: type[kvtier.KvTierError]) -> None:
    assert type(errors.error_of_kind(error_class("message").kind, "message")) is error_class


@pytest.mark.parametrize("error_class", CLASSES)
def test_every_class_is_public(error_class: type[kvtier.KvTierError]) -> None:
    assert getattr(kvtier, error_class.__name__) is error_class
    assert error_class.__name__ in kvtier.__all__


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_errors_travel_between_processes(kind: str) -> None:
    error = errors.error_of_kind(kind, "message", b"key", "/path")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert type(copy) is type(error)
    assert (str(copy), copy.kind, copy.key, copy.path) == ("message", kind, b"key", "/path")


def test_errors_are_what_python_calls_them() -> None:
    assert issubclass(kvtier.ConfigError, ValueError)
    assert issubclass(kvtier.InvalidInputError, ValueError)
    assert issubclass(kvtier.BlockNotFoundError, LookupError)
    assert issubclass(kvtier.DeadlineExceededError, TimeoutError)
