"""Unauthenticated connections are few, short and spread over addresses; those with a stream are left alone."""

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from kubemend.controller.hub.limits import Caps
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.hub.unauthenticated import Visitors


@dataclass
class Visit:
    name: str
    address: str = "10.0.0.1"
    ended: bool = field(default=False)

    def end(self) -> None:
        self.ended = True


class Hall:
    """Connections under a clock that the test sets."""

    def __init__(self, caps: Caps) -> None:
        self.now = 100.0
        self._registry = CollectorRegistry()
        self.visitors = Visitors(caps, HubMetrics(self._registry), clock=lambda: self.now)

    def comes(self, name: str, address: str = "10.0.0.1") -> Visit | None:
        visit = Visit(name, address)
        return visit if self.visitors.come(visit) else None

    def counted(self) -> Counter[str]:
        return Counter(
            {
                sample.labels["reason"]: int(sample.value)
                for family in self._registry.collect()
                for sample in family.samples
                if sample.name == "kubemend_hub_connections_refused_total" and sample.value
            }
        )


def test_address_at_limit_still_admits_agents_one_by_one() -> None:
    hall = Hall(Caps(unauthenticated_of_address=2))
    assert hall.comes("a") is not None
    assert hall.comes("b") is not None
    assert hall.comes("c") is None
    with hall.visitors.known("a"), hall.visitors.known("b"):
        assert hall.comes("c") is not None
        assert hall.comes("d") is not None
        assert hall.comes("e") is None
    assert hall.counted()["Crowded"] == 4, "c, e, and the two that are strangers' again"


def test_connection_without_authentication_in_time_is_closed() -> None:
    hall = Hall(Caps(seconds=10.0))
    silent, agent = hall.comes("silent"), hall.comes("agent")
    assert silent is not None
    assert agent is not None
    with hall.visitors.known("agent"):
        hall.now += 9.9
        hall.visitors.end_silent()
        assert not silent.ended
        hall.now += 0.1
        hall.visitors.end_silent()
        assert (silent.ended, agent.ended) == (True, False)
    assert hall.counted() == {"Silent": 1}
    assert len(hall.visitors) == 1


def test_connection_without_streams_is_unauthenticated_again() -> None:
    hall = Hall(Caps(seconds=10.0))
    agent = hall.comes("agent")
    assert agent is not None
    with hall.visitors.known("agent"):
        with hall.visitors.known("agent"):
            hall.now += 100
        hall.visitors.end_silent()
        assert not agent.ended, "it has a stream still"
    hall.now += 9
    hall.visitors.end_silent()
    assert not agent.ended
    hall.now += 1
    hall.visitors.end_silent()
    assert agent.ended


def test_unauthenticated_connections_yield_to_other_addresses() -> None:
    hall = Hall(Caps(connections=4, unauthenticated_of_address=4))
    crowd = [hall.comes(f"crowd-{number}") for number in range(4)]
    assert hall.comes("agent", "10.0.0.2") is not None
    assert [visit.ended for visit in crowd if visit is not None] == [True, False, False, False]
    assert hall.counted() == {"Displaced": 1}


def test_agents_stay_within_all_connections_and_never_yield() -> None:
    hall = Hall(Caps(connections=2))
    agents = [hall.comes("one", "10.0.0.1"), hall.comes("two", "10.0.0.2")]
    with hall.visitors.known("one"), hall.visitors.known("two"):
        assert hall.comes("three", "10.0.0.3") is None
        assert not any(agent.ended for agent in agents if agent is not None)
    assert len(hall.visitors) == 2


def test_stream_on_closed_connection_changes_nothing() -> None:
    hall = Hall(Caps())
    visit = hall.comes("gone")
    assert visit is not None
    with hall.visitors.known("gone"):
        hall.visitors.gone(visit)
    hall.now += 100
    hall.visitors.end_silent()
    assert not visit.ended
    assert len(hall.visitors) == 0
