"""The options of a tier: one set of names, and one error for all mistakes."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvtier
from kvtier.config import OPTION_NAMES

OpenTier = Callable[..., kvtier.TierManager]


def test_names_are_the_cores() -> None:
    with pytest.raises(kvtier.ConfigError) as refused:
        kvtier.TierConfig.from_options({"nonsense": 1})
    accepted = str(refused.value).partition("accepted options: ")[2].split(", ")
    assert tuple(accepted) == OPTION_NAMES


def test_every_option_has_documentation() -> None:
    source = inspect.getsource(kvtier.TierConfig)
    for name in OPTION_NAMES:
        assert f"\n    {name}: " in source
    assert source.count('    """') >= len(OPTION_NAMES)


def test_all_problems_in_one_error() -> None:
    with pytest.raises(kvtier.ConfigError) as refused:
        kvtier.TierConfig.from_options(
            {"verfy": "always", "io_threads": 0, "durability": "total", "max_bytes": "1GiB", "load_timeout": "soon"}
        )
    message = str(refused.value)
    assert message.startswith("5 options can't be used:")
    for part in ['"verfy"', "io_threads=0", 'durability="total"', "max_bytes", 'load_timeout="soon"']:
        assert part in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_inflight_ops": 0}, "max_inflight_ops=0 is not accepted"),
        ({"max_inflight_bytes": "0"}, "max_inflight_bytes"),
        ({"max_queued_store_bytes": -1}, "max_queued_store_bytes=-1"),
        ({"max_inflight_bytes": "2 elephants"}, "2 elephants"),
        ({"load_timeout": 0}, "load_timeout=0"),
        ({"load_timeout": float("inf")}, "load_timeout=inf"),
        ({"store_timeout": float("nan")}, "store_timeout=NaN"),
        ({"io_threads": True}, "io_threads=True"),
        ({"io_threads": 10**50}, "io_threads=a number beyond all limits"),
        ({"exclusive": "yes"}, 'exclusive="yes" is not accepted; give True or False'),
        ({"exclusive": True, "read_only": True}, "exclusive=True with read_only=True"),
        ({"layout": "packt"}, 'layout="packt" is not accepted; give "files" or "packed" or "auto"'),
        ({"layout": "packed"}, 'layout="packed" needs a bound'),
        ({"layout": "packed", "max_bytes": "1GiB", "compat": "vllm"}, 'compat="vllm" with layout="packed"'),
        ({"layout": "packed", "max_bytes": "1GiB", "quarantine": True}, 'quarantine=True with layout="packed"'),
        ({"layout": "packed", "max_bytes": "1GiB", "exclusive": True}, 'exclusive=True with layout="packed"'),
        ({"max_bytes": "1GiB"}, 'max_bytes with layout="files"'),
        ({"min_free_bytes": "1GiB"}, 'min_free_bytes with layout="files"'),
        ({"layout": "packed", "max_bytes": "1GiB", "segment_bytes": 5000}, "segment_bytes=5000 is not accepted"),
        ({"compat": []}, "compat=a list"),
        ({"file_mode": 0o100}, "permission bits"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(kvtier.ConfigError, match=message.replace("[", r"\[")) as refused:
        kvtier.TierConfig(**options)
    assert refused.value.kind == "config"


def test_sizes_and_modes_as_people_write_them() -> None:
    config = kvtier.TierConfig(max_inflight_bytes="2GiB", file_mode="0o660", direct_io=False, load_timeout=1)
    assert config.max_inflight_bytes == "2GiB"


def test_options_win_over_the_config(open_tier: OpenTier) -> None:
    config = kvtier.TierConfig(read_only=True, io_threads=1)
    assert open_tier(config=config, read_only=False) is not None
    with pytest.raises(kvtier.ConfigError, match="unknown option"):
        open_tier(config=config, verfy="always")


def test_a_config_is_a_value() -> None:
    assert kvtier.TierConfig() == kvtier.TierConfig()
    assert hash(kvtier.TierConfig()) == hash(kvtier.TierConfig())
    with pytest.raises(AttributeError):
        kvtier.TierConfig().io_threads = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "the scheme is not known; give file:///absolute/path"),
        ("s3://", "the bucket is missing"),
        ("https://host/bucket", "the option endpoint"),
        ("", "it is empty"),
        ("memory://a/b", "no slash"),
        ("/tmp/\udcff", "url: it holds characters that UTF-8 has no bytes for"),
    ],
)
def test_urls(open_tier: OpenTier, url: str, message: str) -> None:
    with pytest.raises(kvtier.ConfigError, match=message):
        open_tier(url=url)


def test_urls_are_text_or_paths(open_tier: OpenTier, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        open_tier(url=3)
    with pytest.raises(kvtier.KvTierError):
        open_tier(url=tmp_path / "missing" / "root")
