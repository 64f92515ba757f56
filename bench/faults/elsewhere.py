"""Provide a network namespace with addresses of its own: a second machine for hostile clients."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.faults.reporting import NotTriedError

_SECONDS: Final = 10.0
_NETWORKS: Final = tuple(f"198.{18 + number // 256}.{number % 256}" for number in range(512))
"""The /24s of 198.18.0.0/15, which is for tests of networks (RFC 2544)."""
_FIRST: Final = 2
_MOST: Final = 250


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Describe it: ``host`` is this machine's address as seen from there, ``addresses`` are those of the namespace."""

    host: str
    addresses: tuple[str, ...]
    _namespace: str

    def command(self, *arguments: str) -> Sequence[str]:
        """Return the command that runs another one there."""
        return ("ip", "netns", "exec", self._namespace, *arguments)


@contextlib.contextmanager
def made(*, addresses: int) -> Iterator[Elsewhere]:
    """Create one for the length of the block, with at most 250 addresses. Raises NotTriedError."""
    assert addresses <= _MOST, addresses
    name, here, there = (f"kubemend-{os.getpid()}", f"km{os.getpid()}a", f"km{os.getpid()}b")
    network = _free_network()
    found = Elsewhere(f"{network}.1", tuple(f"{network}.{_FIRST + each}" for each in range(addresses)), name)
    _ip("netns", "add", name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        _ip("address", "add", f"{found.host}/24", "dev", here)
        _ip("link", "set", here, "up")
        lines = [f"address add {address}/24 dev {there}" for address in found.addresses]
        _ip("-netns", name, "-batch", "-", lines="\n".join([*lines, f"link set {there} up"]))
        yield found
    finally:
        _ip("netns", "delete", name)  # removes its end of the pair, and thereby the other one
        with contextlib.suppress(NotTriedError):
            _ip("link", "delete", here)  # already removed, or about to be: a namespace is removed asynchronously


def _free_network() -> str:
    """Return the first three bytes of a network in which this machine has no address."""
    reported = json.loads(_ip("-json", "-4", "address") or "[]")
    taken = {info["local"].rpartition(".")[0] for link in reported for info in link.get("addr_info", ())}
    start = os.getpid() % len(_NETWORKS)
    return next(each for each in (*_NETWORKS[start:], *_NETWORKS[:start]) if each not in taken)


def _ip(*arguments: str, lines: str = "") -> str:
    command = ("ip", *arguments)
    try:
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except FileNotFoundError:
        raise NotTriedError("no program 'ip'; apt-get install iproute2") from None
    except subprocess.SubprocessError as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise NotTriedError(f"{' '.join(command)}: {reason.strip()}; a network namespace needs root") from error
    return done.stdout
