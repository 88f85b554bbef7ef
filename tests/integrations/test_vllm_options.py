"""What an operator may write, and how a mistake is answered."""

from types import SimpleNamespace
from typing import Any

import pytest

import kvtier
from kvtier.integrations.vllm.entry import Entry
from kvtier.integrations.vllm.options import ACCEPTED, VllmOptions


def problems(**options: Any) -> str:
    with pytest.raises(kvtier.ConfigError) as caught:
        VllmOptions.of({"url": "memory://", **options})
    return str(caught.value)


class TestOptions:
    def test_each_by_its_name(self) -> None:
        options = VllmOptions.of(
            {
                "url": "file:///kv",
                "locality": "REMOTE",
                "replicated": True,
                "model_revision": "abc",
                "rope": {"factor": 2},
                "enable_kv_events": True,
                "on_reset": "delete",
                "verify": "never",
                "max_queued_store_bytes": "2GiB",
                "namespace": None,
            }
        )
        assert (options.url, options.locality, options.replicated) == ("file:///kv", "REMOTE", True)
        assert (options.model_revision, options.rope, options.namespace) == ("abc", {"factor": 2}, None)
        assert options.tier == kvtier.TierConfig(verify="never", max_queued_store_bytes="2GiB")

    def test_every_option_of_a_tier_is_one_here(self) -> None:
        shared = set(kvtier.TierConfig().as_options()) - {"stepwise", "events"}
        assert shared < set(ACCEPTED)

    def test_all_mistakes_come_in_one_error(self) -> None:
        text = problems(
            verfy="always",
            locality="local",
            on_reset="never",
            replicated="yes",
            model_revision=3,
            verify="sometimes",
            io_threads=0,
        )
        for part in (
            "there is no option 'verfy'; accepted are url, locality, replicated",
            'locality=\'local\' is not accepted; give "LOCAL" or "REMOTE"',
            'on_reset=\'never\' is not accepted; give "keep" or "new_epoch" or "delete"',
            "replicated='yes' is not accepted; give true or false",
            "model_revision=3 is not accepted; give text",
            'verify="sometimes" is not accepted',
            "io_threads=0 is not accepted",
        ):
            assert part in text

    def test_the_place_must_be_said(self) -> None:
        with pytest.raises(kvtier.ConfigError, match="url is missing; give the place"):
            VllmOptions.of({})

    @pytest.mark.parametrize(
        ("option", "hint"), [("root_dir", 'url="file:///..."'), ("n_read_threads", "io_threads"), ("prefix", "url=")]
    )
    def test_options_of_vllms_own_tiers_are_told_what_they_are_called_here(self, option: str, hint: str) -> None:
        assert f"there is no option {option!r} ({hint}" in problems(**{option: "x"})

    @pytest.mark.parametrize("option", ["stepwise", "events"])
    def test_what_follows_from_being_in_vllm_is_no_option(self, option: str) -> None:
        assert f"there is no option {option!r}" in problems(**{option: True})

    def test_what_vllms_own_naming_has_no_place_for_is_refused_with_it(self) -> None:
        text = problems(compat="vllm", namespace="team", model_revision="abc", replicated=False, on_reset="new_epoch")
        for name in ("namespace", "model_revision", "replicated"):
            assert f"{name} has no place in vLLM's own naming" in text
        assert 'on_reset="new_epoch" has no place in vLLM\'s own naming' in text

    def test_a_read_only_tier_deletes_nothing(self) -> None:
        assert "a read-only tier deletes nothing" in problems(read_only=True, on_reset="delete")
        assert VllmOptions.of({"url": "memory://", "read_only": True, "on_reset": "new_epoch"}).tier.read_only

    def test_secrets_are_not_repeated(self) -> None:
        assert "hunter2" not in problems(secret="hunter2", nonsense="hunter2")  # noqa: S106 - of nothing


def entry(arguments: dict[str, Any], *written: dict[str, Any], taken: tuple[str, ...] = ()) -> Entry:
    spec = SimpleNamespace(extra_config={"secondary_tiers": list(written)})
    return Entry.of(spec, "kvtier", arguments, taken)


class TestEntry:
    def test_it_is_what_the_operator_wrote(self) -> None:
        written = {"type": "kvtier", "module_path": "m", "backpressure": {}, "url": "u", "rope": {"a": [1]}}
        found = entry({"url": "u", "rope": {"a": [1]}}, {"type": "fs", "root_dir": "/x"}, written)
        assert found == Entry({"url": "u", "rope": {"a": [1]}}, "2:kvtier")

    def test_keywords_of_newer_versions_are_not_the_operators(self) -> None:
        found = entry({"url": "u", "tier_index": 3, "clock": object()}, {"type": "kvtier", "url": "u"})
        assert dict(found.options) == {"url": "u"}

    def test_what_the_operator_misspelt_is(self) -> None:
        found = entry({"ulr": "u", "clock": object()}, {"type": "kvtier", "ulr": "u"})
        assert dict(found.options) == {"ulr": "u"}

    def test_two_entries_have_labels_of_their_own(self) -> None:
        a, b = ({"type": "kvtier", "url": url} for url in "ab")
        assert [entry({"url": url}, a, b).label for url in "ab"] == ["1:kvtier", "2:kvtier"]
        assert entry({"url": "a"}, a, a, taken=("1:kvtier",)).label == "2:kvtier"

    def test_a_tier_made_by_hand_takes_what_a_configuration_could_hold(self) -> None:
        found = entry({"url": "u", "verfy": "always", "clock": object(), "locality": None})
        assert found == Entry({"url": "u", "verfy": "always", "locality": None}, "kvtier")
        assert Entry.of(SimpleNamespace(), "bench", {"url": "u"}) == Entry({"url": "u"}, "bench")
