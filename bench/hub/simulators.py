"""``python -m bench.hub.simulators``: one process of simulated agents. Commands and answers are JSON lines.

``{"do": "connect", "address": [host, port], "bundle": PEM, "each": count, "places": [...]}`` answers when all are
welcomed, that many on each connection; ``{"do": "round", "agent": number | null, "members": count}`` begins one, by
that agent's fault if given, and answers with the times when as many of the first agents have been released; ``{"do":
"broadcast", "agent": number | null}`` does the same with bare messages to all, for which ``{"do": "join"}`` has opened
streams; ``{"do": "disturb", "places": [...]}`` adds a deaf agent and a slow one, which reconnect whenever they are
dropped, and fail at each further round.
"""

import dataclasses
import gc
import json
import os
import select
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.hub import http2
from bench.hub.agents import Agent, DeafAgent, Place, SlowAgent, Times
from bench.hub.http2 import Connection

_CONNECTING = 16  # at once: all come from one address (``unauthenticated_of_address`` in controller.hub.limits)
_JOINING = 128
_TEND_SECONDS = 0.5


class Simulators:
    """Manage the agents of one process."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._members: list[Agent] = []
        self._disturbers: list[Agent] = []
        self._dropped = 0
        self._times = Times()
        self._address = ("", 0)
        self._tls: ssl.SSLContext | None = None
        self._each = 1
        self._tended = time.monotonic()

    def run(self) -> None:
        """Serve commands until the input ends."""
        commands = sys.stdin.fileno()
        os.set_blocking(commands, False)
        self._poll.register(commands, select.EPOLLIN)
        line = b""
        while True:
            if commands not in self._turn():
                continue
            read = os.read(commands, 2**20)
            if not read:
                return
            *whole, line = (line + read).split(b"\n")
            for command in whole:
                print(json.dumps(self._obey(json.loads(command))), flush=True)

    def _obey(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "connect":
                host, port = command["address"]
                self._address, self._tls, self._each = (host, port), http2.tls(command["bundle"]), command["each"]
                return self._connect([Place(**place) for place in command["places"]])
            case "join":
                self._join()
                return {}
            case "round":
                for agent in self._disturbers if command["agent"] is not None else ():
                    agent.fail()
                return self._measured(command["agent"], Agent.fail, members=command["members"])
            case "broadcast":
                return self._measured(command["agent"], Agent.begin_broadcast, members=len(self._members))
            case "disturb":
                for kind, place in zip((DeafAgent, SlowAgent), command["places"], strict=True):
                    self._disturbers.append(self._add(kind, Place(**place)))
                return {}
            case "dropped":
                return {"dropped": self._dropped}
            case other:
                raise ValueError(f"{other} is not a command")

    def _connect(self, places: list[Place]) -> dict[str, Any]:
        first, *others = places
        self._members.append(self._connect_until_led(first))
        began = time.monotonic()
        for place in others:
            self._members.append(self._add(Agent, place))
            while sum(not agent.welcome for agent in self._members[-2 * _CONNECTING :]) > _CONNECTING:
                self._turn()
        self._until_welcome()
        gc.collect()
        gc.freeze()
        return {"began": began, "ended": time.monotonic()}

    def _connect_until_led(self, place: Place) -> Agent:
        """Connect one agent, repeatedly until the hub leads: this is not measured."""
        while True:
            agent = self._add(Agent, place)
            while not agent.welcome and not agent.ended:
                self._poll.poll(_TEND_SECONDS)
                agent.connection.read()
            if agent.welcome:
                return agent
            self._forget(agent)
            time.sleep(_TEND_SECONDS)

    def _join(self) -> None:
        """Open the streams for bare broadcasts, so few at once that gRPC refuses none."""
        for number, agent in enumerate(self._members):
            agent.join_broadcast(self._times)
            while (
                sum(not each.welcome for each in self._members[max(0, number - _JOINING) : number + 1]) > _JOINING // 2
            ):
                self._turn()
        self._until_welcome()

    def _until_welcome(self) -> None:
        while not all(agent.welcome for agent in self._members):
            self._turn()

    def _measured(self, first: int | None, begin: Callable[[Agent], float], *, members: int) -> dict[str, Any]:
        """Have one agent begin, if it is of this process; return the times when ``members`` have been released."""
        self._times.stops.clear()
        self._times.releases.clear()
        fault = begin(self._members[first]) if first is not None else None
        while len(self._times.releases) < members:
            self._turn()
        return {"fault": fault, **dataclasses.asdict(self._times)}

    def _turn(self) -> set[int]:
        """Wait for an event and process it; return which descriptors other than agents' can be read."""
        others = set()
        for descriptor, _ in self._poll.poll(_TEND_SECONDS):
            if (connection := self._connections.get(descriptor)) is None:
                others.add(descriptor)
                continue
            connection.read()
            if connection.ended:
                self._lost(connection)
        if time.monotonic() > self._tended + _TEND_SECONDS:
            self._tended = time.monotonic()
            for disturber in self._disturbers:
                disturber.tend()
        return others

    def _add(self, kind: type[Agent], place: Place) -> Agent:
        """Add an agent, on a connection of its own unless ``each`` have room on one."""
        if kind is Agent and len(self._members) % self._each:
            connection = self._members[-1].connection
        else:
            assert self._tls is not None
            connection = Connection(self._address, tls=self._tls, window=kind.window)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
        return kind(place, connection, times=self._times if kind is Agent else Times())

    def _lost(self, connection: Connection) -> None:
        lost = next((each for each in self._disturbers if each.connection is connection), None)
        if lost is None:
            raise RuntimeError("the hub has ended an agent's stream")
        self._forget(lost)
        self._dropped += 1
        self._disturbers[self._disturbers.index(lost)] = self._add(type(lost), lost.place)

    def _forget(self, agent: Agent) -> None:
        del self._connections[agent.connection.fileno()]
        agent.connection.close()


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 1000)
    Simulators().run()
