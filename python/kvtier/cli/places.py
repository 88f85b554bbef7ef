"""Places that commands are given: directories and buckets."""

from typing import Any

from kvtier import KvTierError
from kvtier._kvtier import check_place
from kvtier.cli.buckets import Bucket
from kvtier.cli.ending import UNUSABLE, give_up
from kvtier.cli.roots import Root

Place = Root | Bucket


def look_at(url: str, options: dict[str, Any]) -> Place:
    """Has the store try out what is at `url`, which stays as it was. Ends the command if no tier can be there."""
    try:
        kind = check_place(url, options)
    except KvTierError as error:
        give_up(str(error), UNUSABLE)
    return Bucket.look_at(url, options) if kind == "bucket" else Root.look_at(url, options)
