"""Hooks: kubelet's rules for redirects and answers, and no hook content that raises an unexpected error."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubemend.agent.actuator import hooks
from kubemend.agent.clients.cri.errors import AnswerTooLong
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ExecHook, Hook, HttpHook, SleepHook
from kubemend.agent.restart.successor_spec import PreStopHook
from tests.environments.runtime import CriEnv

CONTAINER = ContainerId("c1")
HERE = "127.0.0.1"

UNSENDABLE = [
    pytest.param(HttpHook(port=1, host=HERE, headers=(("X-A", "a\nb"),)), id="newline-in-a-value"),
    pytest.param(HttpHook(port=1, host=HERE, headers=(("X\r\nA", "a"),)), id="newline-in-a-name"),
    pytest.param(HttpHook(port=1, host="a..b"), id="an-empty-label"),
    pytest.param(HttpHook(port=1, host="a\nb"), id="newline-in-the-host"),
    pytest.param(HttpHook(port=1, host="x" * 300), id="a-host-too-long"),
    pytest.param(HttpHook(port=1, host="[::"), id="half-an-address"),
    pytest.param(HttpHook(port=99_999, host=HERE), id="no-such-port"),
    pytest.param(HttpHook(port=1, host=HERE, scheme="GOPHER"), id="no-such-scheme"),
    pytest.param(HttpHook(port=1, host=HERE, headers=(("Transfer-Encoding", "chunked"),)), id="a-body-of-its-own"),
    pytest.param(HttpHook(port=1, host=HERE, headers=(("X-A", "\ud800"),)), id="half-a-character"),
    pytest.param(ExecHook(("echo", "\ud800")), id="half-a-character-in-a-command"),
    pytest.param(SleepHook(10**400), id="an-endless-number"),
]


class Answered:
    """The result of ExecSync."""

    exit_code = 0
    stderr = b""


class NoRuntime:
    """Accept what the real call could send."""

    timeout = 0.0

    async def exec_sync(self, container_id: ContainerId, command: tuple[str, ...], *, timeout: float) -> Answered:
        self.timeout = timeout
        for word in command:
            word.encode()
        return Answered()


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test queries a name server: invalid names are refused as in the real call, and no name resolves."""
    real = socket.getaddrinfo

    def lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == HERE:
            return real(host, *args, **kwargs)
        host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


async def run(hook: Hook) -> None:
    await hooks.run_post_start(hook, runtime=NoRuntime(), container_id=CONTAINER, pod_ip=HERE)


@pytest.mark.parametrize("hook", UNSENDABLE)
async def test_unsendable_hook_fails_with_a_reason(hook: Hook) -> None:
    with pytest.raises(hooks.HookFailedError, match=r"\S"):
        await run(hook)


@pytest.mark.parametrize("hook", UNSENDABLE)
async def test_unsendable_pre_stop_is_reported_and_the_container_stopped(cri_env: CriEnv, hook: Hook) -> None:
    intent = cri_env.intent(grace_seconds=0.5)
    successor_spec = await cri_env.successor_spec(intent, pre_stop_hook=PreStopHook(hook, pod_ip=HERE))
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    (note,) = outcome.notes
    assert note.startswith("trainer's preStop hook failed: ")


async def tried(hook: Hook) -> tuple[BaseException | None]:
    return await asyncio.gather(run(hook), return_exceptions=True)


ANY_TEXT = st.text(alphabet=st.characters(), max_size=20)
HEADERS = st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=3).map(tuple)
ODD_HOSTS = st.sampled_from([None, HERE, "::1", "a..b", "@", "a/b", "%zz", "xn--a", "\u0000", " "]) | ANY_TEXT
HOOKS = (
    st.builds(
        HttpHook,
        port=st.integers(-5, 5) | st.integers(),
        path=ANY_TEXT,
        scheme=st.sampled_from(["HTTP", "HTTPS", "", "FTP"]) | ANY_TEXT,
        host=ODD_HOSTS,
        headers=HEADERS,
    )
    | st.builds(ExecHook, command=st.lists(ANY_TEXT, max_size=3).map(tuple))
    | st.builds(SleepHook, seconds=st.integers(max_value=0) | st.integers(min_value=10**400))
)


@given(hook=HOOKS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_hook_runs_or_fails(hook: Hook) -> None:
    (failure,) = asyncio.run(tried(hook))
    assert failure is None or isinstance(failure, hooks.HookFailedError)
    assert failure is None or 0 < len(str(failure)) <= 300


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Answer], Awaitable[TestServer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start servers on loopback that answer every path in the same way."""
    servers = []

    async def start(answer: Answer) -> TestServer:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        server = TestServer(app, host=HERE)
        await server.start_server()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close()


def hook_to(server: TestServer, path: str = "/") -> HttpHook:
    assert server.port is not None
    return HttpHook(port=server.port, path=path)


def redirect(location: str, status: int = 302) -> web.Response:
    return web.Response(status=status, headers={"Location": location})


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_to_another_host_counts_as_an_answer(serve: Serve, status: int) -> None:
    seen: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response()

    target = await serve(elsewhere)

    async def answer(request: web.Request) -> web.Response:
        return redirect(f"http://localhost:{target.port}/secret", status)

    await run(hook_to(await serve(answer)))
    assert seen == []


@pytest.mark.parametrize("location", ["/two", "two", "?two", "//127.0.0.1:{port}/two", "http://127.0.0.1:{port}/two"])
async def test_redirect_to_the_same_host_is_followed_with_headers(serve: Serve, location: str) -> None:
    seen: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.path_qs, request.headers["X-A"]))
        return redirect(location.format(port=request.url.port)) if len(seen) == 1 else web.Response()

    server = await serve(answer)
    assert server.port is not None
    await run(HttpHook(port=server.port, path="/one", headers=(("X-A", "a"),)))
    assert [header for _, header in seen] == ["a", "a"]
    assert seen[1][0].endswith("two")


async def test_tenth_redirect_is_refused(serve: Serve) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return redirect(f"/{len(seen)}")

    with pytest.raises(hooks.HookFailedError, match="stopped after 10 redirects"):
        await run(hook_to(await serve(answer)))
    assert len(seen) == 10


@pytest.mark.parametrize("location", ["http://[::", "http://127.0.0.1:99999/", "gopher://127.0.0.1/"])
async def test_invalid_redirect_fails_the_hook(serve: Serve, location: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return redirect(location)

    with pytest.raises(hooks.HookFailedError):
        await run(hook_to(await serve(answer)))


@pytest.mark.parametrize("status", [200, 204, 304, 302, 404, 500])
async def test_any_answer_counts_as_run(serve: Serve, status: int) -> None:
    """Kubelet ignores the status: a hook that passes there must not end the successor."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    await run(hook_to(await serve(answer)))


class Verbose:
    """A runtime that has run the command, and whose answer is too long."""

    async def exec_sync(self, container_id: ContainerId, command: tuple[str, ...], *, timeout: float) -> Answered:
        raise AnswerTooLong("ExecSync: RESOURCE_EXHAUSTED: Received message larger than max (4194306 vs. 262144)")


async def test_hook_with_too_much_output_has_run() -> None:
    await hooks.run_post_start(ExecHook(("cat",)), runtime=Verbose(), container_id=CONTAINER, pod_ip=HERE)


async def test_post_start_hook_may_take_an_hour() -> None:
    """Kubelet has no limit, and a container whose hook has failed is stopped."""
    runtime = NoRuntime()
    await hooks.run_post_start(ExecHook(("warm-up",)), runtime=runtime, container_id=CONTAINER, pod_ip=HERE)
    assert runtime.timeout == 3600.0
