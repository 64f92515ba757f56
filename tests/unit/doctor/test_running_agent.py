"""The doctor's check of a running agent, and of other services at its address."""

from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from kubemend.agent.doctor import kubemend_services
from kubemend.agent.doctor.checks import Result
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus
from kubemend.common.web import WebServer
from tests.environments import node

Report = Callable[[ComponentStatus], None]


@pytest.fixture
def parts() -> ComponentRegistry:
    """The components of an agent."""
    return ComponentRegistry(show=node.metrics().show_part)


@pytest.fixture
async def address(parts: ComponentRegistry, unused_tcp_port: int) -> AsyncIterator[tuple[str, int]]:
    """The address of the agent's own web server."""
    where = ("127.0.0.1", unused_tcp_port)
    async with WebServer(address=where, parts=parts, registry=CollectorRegistry()):
        yield where


async def test_ready_agent_is_ok(parts: ComponentRegistry, address: tuple[str, int]) -> None:
    parts.reporter("nvml")(ComponentStatus(ComponentState.IDLE))
    parts.reporter("kernel-log")(ComponentStatus(ComponentState.READY))

    (check,) = await kubemend_services.running_agent(address)

    assert check.result is Result.OK
    assert check.what == "it runs and is ready: nvml, kernel-log"


async def test_agent_that_listens_on_all_addresses_is_queried_locally(
    parts: ComponentRegistry, address: tuple[str, int]
) -> None:
    (check,) = await kubemend_services.running_agent(("0.0.0.0", address[1]))

    assert check.result is Result.OK


async def test_degraded_components_fail_with_their_hints(parts: ComponentRegistry, address: tuple[str, int]) -> None:
    parts.reporter("kernel-log")(ComponentStatus(ComponentState.DEGRADED, "no log", "mount it"))
    parts.reporter("nvml")

    (check,) = await kubemend_services.running_agent(address)

    assert check.result is Result.FAIL
    assert (check.what, check.hint) == ("it runs, but kernel-log: no log", "mount it")


async def test_starting_agent_is_a_warning(parts: ComponentRegistry, address: tuple[str, int]) -> None:
    parts.reporter("nvml")

    (check,) = await kubemend_services.running_agent(address)

    assert check.result is Result.WARN


async def test_missing_agent_is_not_a_fault(unused_tcp_port: int) -> None:
    (check,) = await kubemend_services.running_agent(("127.0.0.1", unused_tcp_port))

    assert check.result is Result.NOT_NEEDED


@pytest.mark.parametrize("body", ["hello", "[]", '{"parts": 1}', '{"parts": {"nvml": 1}}'])
async def test_foreign_service_at_the_address_fails(unused_tcp_port: int, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    application = web.Application()
    application.add_routes([web.get("/readyz", answer)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()

    (check,) = await kubemend_services.running_agent(("127.0.0.1", unused_tcp_port))
    await runner.cleanup()

    assert check.result is Result.FAIL
    assert "--metrics-address" in check.hint
