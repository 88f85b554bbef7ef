"""A real engine above a real S3 server: it restarts, and the server dies while it serves."""

from dataclasses import dataclass
from typing import Any

import pytest

from s3_server import KEY, SECRET, S3Server

from .conftest import Serve

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1200)]


@dataclass
class Runs:
    """What the engines answered, one after another."""

    first: dict[str, Any]
    restarted: dict[str, Any]


@pytest.fixture(scope="module")
def runs(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        tier = {
            "type": "kvtier",
            "url": f"s3://{server.bucket}/engine",
            "endpoint": server.endpoint,
            "access_key": KEY,
            "secret_key": SECRET,
            "allow_http": True,
        }
        first = serve("llama", 1, tier, prompts=["kept"])
        restarted = serve(
            "llama", 1, tier, prompts=["kept", "after its end"], pause="after its end", meanwhile=server.kill
        )
    return Runs(first, restarted)


def test_a_restart_finds_what_it_had_and_answers_the_same(runs: Runs) -> None:
    before, after = runs.first["answers"]["kept"], runs.restarted["answers"]["kept"]
    assert (before["cached"], after["cached"]) == (0, 896)
    assert after["tokens"] == before["tokens"]


def test_an_engine_whose_server_died_goes_on(runs: Runs) -> None:
    answer = runs.restarted["answers"]["after its end"]
    assert (answer["cached"], len(answer["tokens"])) == (0, 8)
    assert answer["seconds"] < 20
    counters = runs.restarted["counters"]
    assert counters["failed_blocks:1:kvtier:store:unavailable"] == 7
    assert counters["probe_failures:1:kvtier"] > 0
