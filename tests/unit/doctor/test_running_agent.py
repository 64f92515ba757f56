"""What a running agent says about itself, and what is no agent."""

from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from agent.doctor import running_agent
from agent.doctor.checks import Result
from agent.engine.metrics import Metrics
from common.parts import Parts, PartState, PartStatus
from common.web import WebServer

Report = Callable[[PartStatus], None]


@pytest.fixture
def parts() -> Parts:
    """The parts of an agent."""
    return Parts(show=Metrics(CollectorRegistry()).show_part)


@pytest.fixture
async def address(parts: Parts, unused_tcp_port: int) -> AsyncIterator[tuple[str, int]]:
    """Where the agent's own web server tells of them."""
    where = ("127.0.0.1", unused_tcp_port)
    async with WebServer(address=where, parts=parts, registry=CollectorRegistry()):
        yield where


async def test_a_ready_agent_is_well(parts: Parts, address: tuple[str, int]) -> None:
    parts.reporter("nvml")(PartStatus(PartState.IDLE))
    parts.reporter("kernel-log")(PartStatus(PartState.READY))

    (check,) = await running_agent.ready(address)

    assert check.result is Result.OK
    assert check.what == "it runs and is ready: nvml, kernel-log"


async def test_an_agent_that_listens_everywhere_is_asked_here(parts: Parts, address: tuple[str, int]) -> None:
    (check,) = await running_agent.ready(("0.0.0.0", address[1]))

    assert check.result is Result.OK


async def test_degraded_parts_fail_with_their_own_mends(parts: Parts, address: tuple[str, int]) -> None:
    parts.reporter("kernel-log")(PartStatus(PartState.DEGRADED, "no log", "mount it"))
    parts.reporter("nvml")

    (check,) = await running_agent.ready(address)

    assert check.result is Result.FAIL
    assert (check.what, check.mend) == ("it runs, but kernel-log: no log", "mount it")


async def test_an_agent_that_is_starting_is_a_warning(parts: Parts, address: tuple[str, int]) -> None:
    parts.reporter("nvml")

    (check,) = await running_agent.ready(address)

    assert check.result is Result.WARN


async def test_no_agent_at_all_is_no_fault(unused_tcp_port: int) -> None:
    (check,) = await running_agent.ready(("127.0.0.1", unused_tcp_port))

    assert check.result is Result.NOT_NEEDED


@pytest.mark.parametrize("body", ["hello", "[]", '{"parts": 1}', '{"parts": {"nvml": 1}}'])
async def test_another_service_at_the_address_fails(unused_tcp_port: int, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    application = web.Application()
    application.add_routes([web.get("/readyz", answer)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()

    (check,) = await running_agent.ready(("127.0.0.1", unused_tcp_port))
    await runner.cleanup()

    assert check.result is Result.FAIL
    assert "--metrics-address" in check.mend
