"""Options of tiers as commands take them: ``-o NAME=VALUE``, as often as needed."""

import json
from typing import Annotated, Any

import typer

from kvtier import ConfigError
from kvtier._kvtier import check_options
from kvtier.cli.ending import UNUSABLE, give_up

SECRETS = {"secret_key": "AWS_SECRET_ACCESS_KEY", "session_token": "AWS_SESSION_TOKEN"}
"""What a command line must not hold, since every user of the machine can read it, and where it belongs on S3."""

TierOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", show_default=False,
        help="An option of kvtier.open, such as endpoint=http://127.0.0.1:8333. May be repeated.",
    ),
]  # fmt: skip


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """The options as `kvtier.open` takes them. Ends the command if one can't be used."""
    options: dict[str, Any] = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not separator:
            give_up(f"-o {name!r} has no value; give -o NAME=VALUE", UNUSABLE)
        if name in SECRETS:
            give_up(f"{name} must not be on a command line; put it into the environment ({SECRETS[name]})", UNUSABLE)
        if name in options:
            give_up(f"-o {name} is given twice", UNUSABLE)
        options[name] = _value(value)
    try:
        check_options(options)
    except ConfigError as error:
        give_up(str(error), UNUSABLE)
    return options


def _value(text: str) -> Any:
    """`true` or `True`, a number, or else the text as it is."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
