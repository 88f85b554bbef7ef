"""The processes of the demo, seen from the one that starts them: none is left over, and none dies unnoticed."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from kvtier.cli.demo.ranks import Failed, Message, Plan, Progress, Rank, Report, run

# Each rank starts from a fresh interpreter, as an engine's workers do.
_SPAWN = multiprocessing.get_context("spawn")
_END_SECONDS = 5


class RankFailedError(Exception):
    """A rank's process failed or died; the message says which and why."""


@dataclass
class _Member:
    process: SpawnProcess
    pipe: Connection
    reports: list[Report] = field(default_factory=list)


class Team:
    """One process a rank. As a context manager, it ends them whatever happens."""

    def __init__(self, plan: Plan, ranks: Iterable[Rank]) -> None:
        """Starts the processes; readers wait until they are released."""
        self._members: dict[Rank, _Member] = {}
        try:
            for rank in ranks:
                self._members[rank] = self._start(plan, rank)
        except BaseException:
            self._end()
            raise

    @staticmethod
    def _start(plan: Plan, rank: Rank) -> _Member:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=run, args=(plan, rank, theirs), name=str(rank), daemon=True)
        process.start()
        theirs.close()  # so that the pipe ends when the process does
        return _Member(process, ours)

    def release(self, ranks: Iterable[Rank]) -> None:
        """Lets readers begin."""
        for rank in ranks:
            with suppress(BrokenPipeError):  # its death is found when its reports are collected
                self._members[rank].pipe.send("begin")

    def collect(self, ranks: Iterable[Rank], progress: Callable[[Rank, int], None]) -> dict[Rank, list[Report]]:
        """Waits until these ranks have done both parts, and gives the two reports of each.

        Args:
            ranks: The processes to wait for.
            progress: Called with a rank and a number of blocks that have moved since the last call.

        Raises:
            RankFailedError: One of all ranks, also of those that are not waited for, failed.
        """
        waited_for = {rank: self._members[rank] for rank in ranks}
        while any(len(member.reports) < 2 for member in waited_for.values()):
            working = {rank: member for rank, member in self._members.items() if len(member.reports) < 2}
            ready = wait([member.pipe for member in working.values()])
            for rank in [rank for rank, member in working.items() if member.pipe in ready]:
                match self._receive(rank):
                    case Progress(blocks):
                        # The second part is a few blocks, and it is not what the progress is about.
                        if not self._members[rank].reports:
                            progress(rank, blocks)
                    case Report() as report:
                        self._members[rank].reports.append(report)
                    case Failed(reason):
                        raise RankFailedError(f"{rank}: {reason}")
        return {rank: member.reports for rank, member in waited_for.items()}

    def _receive(self, rank: Rank) -> Message:
        member = self._members[rank]
        try:
            message: Message = member.pipe.recv()
        except (EOFError, ConnectionError):
            member.process.join(_END_SECONDS)
            raise RankFailedError(f"{rank} (process {member.process.pid}) {_cause(member.process)}") from None
        return message

    def _end(self) -> None:
        for member in self._members.values():
            member.process.terminate()
        for member in self._members.values():
            member.process.join(_END_SECONDS)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()


def _cause(process: SpawnProcess) -> str:
    """How a process ended that had more to say."""
    match process.exitcode:
        case None:
            return "closed its pipe and hangs"
        case code if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        case code:
            return f"ended early with exit code {code}"
