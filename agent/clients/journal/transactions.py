"""Run work on one SQLite connection, in a thread of its own, and batch what waits while the disk is busy.

A commit waits for the disk, however little it writes. When all members of a gang on a node are stopped at once, each
must write a record before; then one wait serves them all. Each piece of work fails separately.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")
Work = Callable[[sqlite3.Connection], _T]


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work[Any]
    outcome: "asyncio.Future[Any]"


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class Transactions:
    """Run work in the order of arrival. ``thread`` has one worker, which alone uses the connection."""

    def __init__(self, connection: sqlite3.Connection, *, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._thread = thread
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []

    async def run(self, work: Work[_T]) -> _T:
        """Return the work's result once it is on disk, or raise its error (sqlite3.Error)."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()
        with self._lock:
            self._jobs.append(_Job(work, outcome))
            is_first = len(self._jobs) == 1
        if is_first:
            self._thread.submit(self._run_waiting, loop)
        return await outcome

    def _run_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            jobs, self._jobs = self._jobs, []
        results: list[Any]
        try:
            with _transaction(self._connection):
                results = [self._result(job.work) for job in jobs]
        except sqlite3.Error as error:
            results = [_Failed(error)] * len(jobs)
        with contextlib.suppress(RuntimeError):  # the event loop has ended in the meantime
            loop.call_soon_threadsafe(_settle, jobs, results)

    def _result(self, work: Work[Any]) -> Any:
        """Do one piece of work and roll it back if it fails.

        Raises sqlite3.Error if the whole transaction has failed.
        """
        self._connection.execute("SAVEPOINT job")
        try:
            result = work(self._connection)
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            self._connection.execute("ROLLBACK TO job")
            result = _Failed(error)
        self._connection.execute("RELEASE job")
        return result


def _settle(jobs: list[_Job], results: list[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.outcome.done():
            continue  # the caller no longer waits
        if isinstance(result, _Failed):
            job.outcome.set_exception(result.error)
        else:
            job.outcome.set_result(result)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have ended it itself; an open one would block all that follow
            connection.execute("ROLLBACK")
        raise
