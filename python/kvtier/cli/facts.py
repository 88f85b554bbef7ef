"""The facts of an identity as options of a command."""

import functools
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kvtier import Identity, KvTierError
from kvtier.cli.ending import UNUSABLE, give_up


def takes_facts(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one option for each fact; its first argument becomes the identity that they state.

    The argument is None when no option is used.
    """

    @functools.wraps(command)
    def with_options(**arguments: Any) -> None:
        stated = {name: arguments.pop(name) for name in _OPTIONS}
        given = {name: value for name, value in stated.items() if value is not None}
        command(_identity_of(given) if given else None, **arguments)

    # Typer reads the signature: the command's own parameters but the first, then the options.
    signature = inspect.signature(command)
    own = list(signature.parameters.values())[1:]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + options
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _identity_of(facts: dict[str, Any]) -> Identity:
    missing = [
        f"--{name.replace('_', '-')}" for name in ("model_name", "tokens_per_hash", "dtype") if name not in facts
    ]
    if missing:
        give_up(f"an identity needs {' and '.join(missing)} too", UNUSABLE)
    try:
        return Identity(**facts)
    except KvTierError as error:
        give_up(str(error), UNUSABLE)


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no JSON: {error}") from error


def _option(kind: type, text: str) -> Any:
    return Annotated[kind | None, typer.Option(help=text, show_default=False, rich_help_panel="Facts")]


def _json_option(text: str) -> Any:
    option = typer.Option(parser=_json_of, metavar="JSON", help=text, show_default=False, rich_help_panel="Facts")
    return Annotated[Any, option]


def _flag(name: str, text: str) -> Any:
    option = typer.Option(f"--{name}", help=text, show_default=False, rich_help_panel="Facts")
    return Annotated[bool | None, option]


_OPTIONS: dict[str, Any] = {
    "model_name": _option(str, "The model's name or path."),
    "tokens_per_hash": _option(int, "Tokens that one block hash covers."),
    "dtype": _option(str, "Resolved element type of the KV cache."),
    "blocks_per_file": _option(int, "Blocks in one file; 1 if left out, as for the sizes below."),
    "tp_size": _option(int, "Tensor-parallel workers."),
    "pp_size": _option(int, "Pipeline stages."),
    "pcp_size": _option(int, "Prefill-context-parallel workers."),
    "dcp_size": _option(int, "Decode-context-parallel workers."),
    "rank": _option(int, "The worker's number; 0 if left out."),
    "kv_cache_groups": _json_option('[{"tokens_per_block": 16, "layer_names": ["..."]}, ...]'),
    "inference_engine": _option(str, "The engine's name; vllm if left out."),
    "parallel_agnostic": _flag("parallel-agnostic", "Opt in to share rows between parallel layouts."),
    "replicated_layout": _flag("replicated-layout", "Every rank holds the same bytes."),
    "canonical_format": _option(str, "The engine's canonical byte format."),
    "row_bytes": _option(int, "Bytes from one row to the next."),
    "payload_bytes": _option(int, "Bytes of a row that are stored, where strides differ."),
    "worker_bytes": _option(int, "Bytes of a block that each worker keeps, where a row joins their parts."),
    "blocks_per_chunk": _option(int, "Blocks that the engine joins into one row."),
    "kv_cache_layout": _option(str, "Name of the KV layout, such as HND."),
    "model_id": _option(str, "The model's name wherever it is loaded from."),
    "model_revision": _option(str, "Revision of the weights."),
    "rope": _json_option("Parameters of the position encoding and other overrides."),
    "kv_scales": _json_option("Scales of a quantised KV cache, or a fingerprint of them."),
    "model_runner": _option(str, "Generation of the engine's model runner."),
    "namespace": _option(str, "The operator's name for what is kept apart."),
}
