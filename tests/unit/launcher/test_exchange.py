"""The listener on a launcher's socket may answer never, nonsense, or without end."""

import functools
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from kubemend.agent.clients.launcher import exchange
from kubemend.agent.clients.launcher.exchange import LauncherAddress, NoAnswerError
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import process
from kubemend.agent.restart.process import Launcher, State
from kubemend.common import kernel_files

CONTAINER = ContainerId("c" * 64)
LINE = (
    json.dumps(
        {
            "kubemend-run": 1,
            "state": "stopping",
            "error": "",
            "order": "",
            "program": 1,
            "age": 0,
            "restarts": 0,
            "spare": 0,
            "no_spare": "",
            "code": 0,
        }
    ).encode()
    + b"\n"
)
HELD = LINE.replace(b"stopping", b"held")


class Listener:
    """A launcher's socket in this process, and what it does with a connection."""

    def __init__(self, folder: Path) -> None:
        namespace = Path("/proc/self/ns/mnt").stat().st_ino
        self.address = LauncherAddress(os.getpid(), CONTAINER, str(folder), Path("/proc"))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / f"launcher-{namespace}.sock"))
        self._socket.listen()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def answers(self, how: Callable[[socket.socket], None]) -> None:
        """Answer the next connection so."""

        def serve() -> None:
            connection, _ = self._socket.accept()
            with connection:
                try:
                    how(connection)
                    self._ended.wait()
                except OSError:
                    return  # the agent has hung up

        thread = threading.Thread(target=serve)
        thread.start()
        self._threads.append(thread)

    def ask(self, *passing: State, timeout: float = 30.0, least: float = 30.0) -> Launcher:
        states = functools.partial(exchange.in_states, frozenset(passing))
        return self.ask_until(states, timeout=timeout, least=least)

    def ask_until(self, passing: exchange.Passing, *, timeout: float = 30.0, least: float = 30.0) -> Launcher:
        return exchange.exchange(self.address, process.STATUS_REQUEST, passing=passing, timeout=timeout, least=least)

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr("kubemend.agent.health.cgroup_paths.container_id", lambda _: CONTAINER)
    made = Listener(tmp_path)
    yield made
    made.close()


def test_the_first_answer_that_is_not_passing_counts(listener: Listener) -> None:
    listener.answers(lambda peer: peer.sendall(LINE * 2 + HELD))
    assert listener.ask(State.STOPPING).state is State.HELD


def test_an_answer_in_pieces_is_one(listener: Listener) -> None:
    def slowly(peer: socket.socket) -> None:
        for byte in HELD:
            peer.sendall(bytes([byte]))

    listener.answers(slowly)
    assert listener.ask().state is State.HELD


def test_the_latest_answer_counts_when_the_time_is_up(listener: Listener) -> None:
    listener.answers(lambda peer: peer.sendall(LINE))
    asked = time.monotonic()
    found = listener.ask(State.STOPPING, timeout=0.05)
    assert (found.state, found.answered is not None) == (State.STOPPING, True)
    assert asked <= (found.answered or 0.0) <= time.monotonic()


def endlessly(text: bytes) -> Callable[[socket.socket], None]:
    def send(peer: socket.socket) -> None:
        while True:
            peer.sendall(text)

    return send


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (endlessly(b"x" * 1000), "the launcher's answer does not end"),
        (endlessly(LINE), "the launcher's answer does not end"),
        (endlessly(b"\n"), "the launcher's answer is not valid"),
        (lambda peer: peer.sendall(b"{}\n"), "answer is not valid: it is not an answer of kubemend_run.py"),
        (lambda peer: peer.sendall(b"[" * 4000 + b"\n"), "the launcher's answer is not valid: it is nested too deeply"),
        (lambda peer: peer.sendall(LINE.replace(b"stopping", b"x" * 3000)), r"answer is not valid: 'x{199}$"),
        (lambda peer: peer.shutdown(socket.SHUT_RDWR), "has closed the connection|Broken pipe"),
        (lambda peer: peer.sendall(HELD[:-1]) or peer.shutdown(socket.SHUT_WR), "the launcher has closed"),
    ],
    ids=["endless-line", "endless-lines", "empty-lines", "other-json", "nested", "long-quote", "closed", "half-a-line"],
)
def test_nonsense_is_no_answer(listener: Listener, how: Callable[[socket.socket], None], reason: str) -> None:
    listener.answers(how)
    with pytest.raises(NoAnswerError, match=reason):
        listener.ask(State.STOPPING)


def test_silence_is_no_answer(listener: Listener) -> None:
    listener.answers(lambda _: None)
    with pytest.raises(NoAnswerError, match=r"the launcher did not answer within 0.05 s"):
        listener.ask(least=0.05, timeout=0.05)


def test_dripping_bytes_do_not_extend_the_time(listener: Listener) -> None:
    def drip(peer: socket.socket) -> None:
        while True:
            peer.sendall(b" ")
            time.sleep(0.01)

    listener.answers(drip)
    with pytest.raises(NoAnswerError, match=r"did not answer within 0.1 s"):
        listener.ask(least=0.1, timeout=0.1)


def test_bytes_that_drip_fast_do_not_extend_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.0005)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    peer = mock.Mock()
    peer.recv.return_value = b" "
    with pytest.raises(TimeoutError):
        exchange._answers(peer, passing=lambda _: True, until=0.1, least=0.1)
    assert next(clock) < 0.2


def test_a_process_of_another_container_is_not_asked(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubemend.agent.health.cgroup_paths.container_id", lambda _: ContainerId("d" * 64))
    with pytest.raises(NoAnswerError, match="the container's main process has ended"):
        listener.ask()


def test_many_processes_below_the_launcher_are_found_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod chooses how many there are; while they are compared, the rest of the agent is slow."""
    main, most = 1, 20_000

    def stat(file: Path, **_: object) -> str:
        pid = int(file.parent.name)
        return f"{pid} (x) S {pid - 1 if pid % 2 else main} {'0 ' * 15}1 0 {pid} 0"

    monkeypatch.setattr(kernel_files, "read", stat)
    address = LauncherAddress(main, CONTAINER, "", Path("/proc"))
    began = time.process_time()
    found = exchange.remains(address, spare=2, pids=frozenset(range(2, most)))
    assert found == tuple(range(4, most))
    assert time.process_time() - began < 5.0
