"""``python -m bench.hub.simulators``: one process of simulated agents. Commands and answers are JSON lines.

``{"do": "connect", "address": [host, port], "bundle": PEM, "places": [...]}`` answers when all are welcomed; ``{"do":
"round", "agent": number | null}`` begins one, by that agent's fault if given, and answers with the times when all have
been released; ``{"do": "disturb", "places": [...]}`` adds a deaf agent and a slow one, which reconnect whenever they
are dropped, and fail at each further round.
"""

import dataclasses
import gc
import json
import os
import select
import ssl
import sys
import time
from typing import Any

from bench.hub import http2
from bench.hub.agents import Agent, DeafAgent, Place, SlowAgent, Times

_CONNECTING = 16  # at once: all come from one address (``unauthenticated_of_address`` in controller.hub.limits)
_TEND_SECONDS = 0.5


class Simulators:
    """Manage the agents of one process."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._agents: dict[int, Agent] = {}
        self._members: list[Agent] = []
        self._disturbers: list[Agent] = []
        self._dropped = 0
        self._times = Times()
        self._address = ("", 0)
        self._tls: ssl.SSLContext | None = None
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
                self._address, self._tls = (host, port), http2.tls(command["bundle"])
                return self._connect([Place(**place) for place in command["places"]])
            case "round":
                return self._round(command["agent"])
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
        while not all(agent.welcome for agent in self._members):
            self._turn()
        gc.collect()
        gc.freeze()
        return {"began": began, "ended": time.monotonic()}

    def _connect_until_led(self, place: Place) -> Agent:
        """Connect one agent, repeatedly until the hub leads: this is not measured."""
        while True:
            agent = self._add(Agent, place)
            while not agent.welcome and not agent.ended:
                self._poll.poll(_TEND_SECONDS)
                agent.hear()
            if agent.welcome:
                return agent
            self._forget(agent)
            time.sleep(_TEND_SECONDS)

    def _round(self, failing: int | None) -> dict[str, Any]:
        self._times.stops.clear()
        self._times.releases.clear()
        fault = None
        if failing is not None:
            for agent in self._disturbers:
                agent.fail()
            fault = self._members[failing].fail()
        while len(self._times.releases) < len(self._members):
            self._turn()
        return {"fault": fault, **dataclasses.asdict(self._times)}

    def _turn(self) -> set[int]:
        """Wait for an event and process it; return which descriptors other than agents' can be read."""
        others = set()
        for descriptor, _ in self._poll.poll(_TEND_SECONDS):
            if (agent := self._agents.get(descriptor)) is None:
                others.add(descriptor)
                continue
            agent.hear()
            if agent.ended:
                self._lost(agent)
        if time.monotonic() > self._tended + _TEND_SECONDS:
            self._tended = time.monotonic()
            for disturber in self._disturbers:
                disturber.tend()
        return others

    def _add(self, kind: type[Agent], place: Place) -> Agent:
        assert self._tls is not None
        times = self._times if kind is Agent else Times()
        agent = kind(place, address=self._address, tls=self._tls, times=times)
        self._agents[agent.connection.fileno()] = agent
        self._poll.register(agent.connection.fileno(), select.EPOLLIN)
        return agent

    def _lost(self, agent: Agent) -> None:
        if agent not in self._disturbers:
            raise RuntimeError(f"the hub has ended the stream of {agent.place.node}")
        self._forget(agent)
        self._dropped += 1
        self._disturbers[self._disturbers.index(agent)] = self._add(type(agent), agent.place)

    def _forget(self, agent: Agent) -> None:
        del self._agents[agent.connection.fileno()]
        agent.connection.close()


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 1000)
    Simulators().run()
