"""Where the core's log records enter Python's ``logging``: loggers ``kvtier`` and below, named after modules."""

import logging
import math

_ROOT = "kvtier"


def level() -> int:
    """The lowest level that any kvtier logger takes now."""
    root = logging.getLogger(_ROOT)
    below = (
        logger.level
        for name, logger in list(root.manager.loggerDict.items())
        if name.startswith(f"{_ROOT}.") and isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    )
    return max(min([root.getEffectiveLevel(), *below]), root.manager.disable + 1)


def emit(level: int, name: str, message: str, created: float, thread: str, dropped: int) -> None:
    """Hands one record of the core to its logger.

    Args:
        level: as in ``logging``; 5 for the core's traces.
        name: the logger's.
        message: final text, not a format.
        created: when it was made, in seconds since 1970.
        thread: name of the thread that it was made on.
        dropped: how many records before this one were lost because too many waited.
    """
    if dropped:
        logging.getLogger(_ROOT).warning("%d log records were dropped: too many waited for a call into kvtier", dropped)
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, "", 0, message, (), None)
    record.created = created
    record.msecs = math.floor(created % 1 * 1000)
    record.threadName = thread
    logger.handle(record)
