"""Canonical JSON against Python's own `json`, byte for byte."""

import enum
import json
import math
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kvtier

# Lone surrogates are characters of `str`, and so are two of them in a row.
any_text = st.text(st.characters(exclude_categories=()), max_size=20)
any_int = st.integers() | st.integers(-(2**300), 2**300)
any_float = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | any_int | any_float | any_text
any_json = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(any_text, inner, max_size=5) | st.tuples(inner, inner),
    max_leaves=30,
)


def by_python(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@given(any_json)
@example({"\ud83d\ude00": 1, "\U0001f600": 2, "\uffff": 3})
@example({"": 0, "a": {"b": []}, "A": {}, "é": [[], {}]})
def test_any_value_is_spelled_as_python_does(value: Any) -> None:
    assert kvtier.canonical_json(value) == by_python(value)


@given(st.characters(exclude_categories=()))
def test_any_character_is_escaped_as_python_does(character: str) -> None:
    assert kvtier.canonical_json(character) == by_python(character)


def test_every_character_of_the_basic_plane_is_escaped_as_python_does() -> None:
    everything = "".join(map(chr, range(0x1_0000)))
    assert kvtier.canonical_json(everything) == by_python(everything)


@given(any_float)
def test_any_float_is_spelled_as_python_does(value: float) -> None:
    assert kvtier.canonical_json(value) == repr(value)


def test_floats_of_every_magnitude() -> None:
    mantissas = ("1", "1.5", "9.999999999999999", "2.2250738585072014")
    values = [float(f"{sign}{mantissa}e{e}") for e in range(-323, 308) for mantissa in mantissas for sign in ("", "-")]
    assert kvtier.canonical_json(values) == by_python(values)


@pytest.mark.parametrize(
    "value",
    [5e-324, sys.float_info.min, sys.float_info.max, 1e16, 9999999999999998.0, 1e15, 1e-4, 9.999e-5, -0.0, 0.1 + 0.2],
)
def test_floats_at_the_edges(value: float) -> None:
    assert kvtier.canonical_json(value) == by_python(value)


def test_floats_at_every_power_of_two_and_between_two_decimals() -> None:
    values = [math.ldexp(1.0, exponent) for exponent in range(-1074, 1024)]
    values += [math.nextafter(value, towards) for value in values for towards in (0.0, math.inf)]
    # Multiples of 1/8 this large are as close to the decimal above as to the one below.
    values += [2.0**47 + i / 8 for i in range(2000)] + [2.0**49 + i / 8 for i in range(2000)]
    values = [value for value in values if math.isfinite(value)]
    assert kvtier.canonical_json(values) == by_python(values)


def test_subclasses_are_what_they_derive_from() -> None:
    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "another text"

    class Size(int):
        def __repr__(self) -> str:
            return "another number"

    class Level(enum.IntEnum):
        HIGH = 3

    class Name(enum.StrEnum):
        A = "a"

    class Ratio(float):
        def __repr__(self) -> str:
            return "another number"

    value: list[Any] = [
        Text("x"),
        Size(5),
        Size(2**70),
        Level.HIGH,
        Name.A,
        Ratio(0.5),
        OrderedDict(b=1, a=2),
        np.float64(0.25),
    ]
    assert kvtier.canonical_json(value) == by_python(value)


def test_integers_of_numpy_are_integers() -> None:
    value: list[Any] = [np.int64(-3), np.uint8(200), np.uint64(2**64 - 1)]
    assert kvtier.canonical_json(value) == "[-3,200,18446744073709551615]"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_spell_is_refused_by_its_place(value: float) -> None:
    with pytest.raises(kvtier.InvalidInputError, match=r"value\.a\[1\]\.b is -?(nan|inf), a finite number is accepted"):
        kvtier.canonical_json({"a": [0, {"b": value}]})


@pytest.mark.parametrize("value", [b"bytes", object(), {1, 2}, 1j, np.array([1, 2]), np.float32(1), np.bool_(True)])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(kvtier.InvalidInputError, match=r"value\.x is .* accepted"):
        kvtier.canonical_json({"x": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"x", ("a",)])
def test_keys_that_are_no_text_are_refused(key: object) -> None:
    with pytest.raises(kvtier.InvalidInputError, match=r"value\.a has the key .*, keys are text"):
        kvtier.canonical_json({"a": {key: 1}})  # type: ignore[dict-item]


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    def nested(levels: int) -> Any:
        value: Any = []
        for _ in range(levels - 1):
            value = [value]
        return value

    assert kvtier.canonical_json(nested(1000)) == "[" * 1000 + "]" * 1000
    for levels in (1001, 200_000):
        with pytest.raises(kvtier.InvalidInputError, match="deeper than 1000 levels"):
            kvtier.canonical_json(nested(levels))
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(kvtier.InvalidInputError, match="holds itself"):
        kvtier.canonical_json(endless)


@given(any_json)
def test_config_json_keeps_every_value(value: Any) -> None:
    fields = {"model_name": "m", "rope": value}
    stored = kvtier.StoredConfig(json.dumps(fields).encode())
    # json.loads joins a surrogate pair that dumps wrote from two characters, and so does kvtier.
    assert stored.fields == json.loads(json.dumps(fields))
    assert kvtier.canonical_json(stored.fields) == by_python(fields)
