"""The container runtime as doctor sees it: there, absent, another service; and what it can do."""

import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from agent.doctor import container_runtime
from agent.doctor.checks import Result
from agent.settings import Settings
from tests.fakes.cri_server import CriServer
from tests.unit.cri.conftest import create, start

PID = 4242
"""The pid that the stand-in runtime gives to every running container."""


def settings(endpoint: str, *, proc: Path = Path("/proc")) -> Settings:
    return Settings(cri_endpoint=endpoint, proc=proc)


def shown(proc: Path, container: str) -> Path:
    """Make a procfs in which the process belongs to that container."""
    process = proc / str(PID)
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubepods/podu/{container}\n")
    (process / "stat").write_text(f"{PID} (sh) S 1 {'0 ' * 17} 100 0\n")
    return proc


async def test_a_runtime_that_answers_is_named_with_its_place(runtime: CriServer) -> None:
    (check,) = await container_runtime.runtime(settings(runtime.endpoint))

    assert (check.result, check.mend) == (Result.OK, "")
    assert check.what == f"containerd 2.1.9 at {runtime.endpoint} (set explicitly)"


async def test_a_missing_socket_fails_and_names_it(tmp_path: Path) -> None:
    (check,) = await container_runtime.runtime(settings(str(tmp_path / "none.sock")))

    assert check.result is Result.FAIL
    assert str(tmp_path / "none.sock") in check.what
    assert "start the container runtime" in check.mend


async def test_an_endpoint_that_is_no_socket_path_fails(tmp_path: Path) -> None:
    (check,) = await container_runtime.runtime(settings("tcp://127.0.0.1:1"))

    assert check.result is Result.FAIL
    assert "unix://" in check.mend


async def test_another_service_at_the_socket_fails(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    other = grpc.aio.server()
    other.add_insecure_port(f"unix://{path}")
    await other.start()

    (check,) = await container_runtime.runtime(settings(str(path)))
    await other.stop(grace=None)

    assert check.result is Result.FAIL
    assert "not CRI v1" in check.what


async def test_a_runtime_that_hides_configs_and_has_no_events_is_a_warning(runtime: CriServer) -> None:
    start(runtime, create(runtime))
    runtime.runtime.behaviour.gives_config = False
    runtime.fail("GetContainerEvents", grpc.StatusCode.UNIMPLEMENTED)

    config, events = await container_runtime.abilities(settings(runtime.endpoint))

    assert [config.result, events.result] == [Result.WARN, Result.WARN]
    assert "no restarts by swap" in config.what
    assert "listed every second" in events.what


async def test_a_runtime_that_can_all_is_well(runtime: CriServer) -> None:
    start(runtime, create(runtime))

    checks = await container_runtime.abilities(settings(runtime.endpoint))

    assert [check.result for check in checks] == [Result.OK, Result.OK]


async def test_without_a_container_it_cannot_be_told_whether_configs_are_given(runtime: CriServer) -> None:
    config, events = await container_runtime.abilities(settings(runtime.endpoint))

    assert [config.result, events.result] == [Result.UNKNOWN, Result.OK]


async def test_what_hangs_on_a_missing_runtime_is_unknown_and_points_there(tmp_path: Path) -> None:
    missing = settings(str(tmp_path / "none.sock"))

    checks = [*await container_runtime.abilities(missing), *await container_runtime.processes(missing)]

    assert [check.name for check in checks] == [*container_runtime.ABILITIES, container_runtime.PROCESSES]
    assert {(check.result, check.what, check.mend) for check in checks} == {
        (Result.UNKNOWN, "the runtime could not be asked", "see container-runtime")
    }


async def test_a_call_that_the_runtime_refuses_is_told(runtime: CriServer) -> None:
    runtime.fail("ListContainers", grpc.StatusCode.INTERNAL, details="disk on fire")

    (check,) = await container_runtime.processes(settings(runtime.endpoint))

    assert check.result is Result.UNKNOWN
    assert "disk on fire" in check.what


async def test_a_procfs_that_shows_the_containers_is_the_hosts(runtime: CriServer, tmp_path: Path) -> None:
    container = create(runtime)
    start(runtime, container)

    (check,) = await container_runtime.processes(settings(runtime.endpoint, proc=shown(tmp_path / "p", container)))

    assert check.result is Result.OK


@pytest.mark.parametrize("other", [None, "f" * 64])
async def test_a_procfs_of_another_pid_namespace_fails(runtime: CriServer, tmp_path: Path, other: str | None) -> None:
    start(runtime, create(runtime))
    proc = shown(tmp_path / "p", other) if other else tmp_path

    (check,) = await container_runtime.processes(settings(runtime.endpoint, proc=proc))

    assert check.result is Result.FAIL
    assert "hostPID" in check.mend


async def test_one_container_that_is_shown_proves_the_procfs(runtime: CriServer, tmp_path: Path) -> None:
    older, newer = create(runtime, "older"), create(runtime, "newer")
    start(runtime, older)
    start(runtime, newer)

    (check,) = await container_runtime.processes(settings(runtime.endpoint, proc=shown(tmp_path / "p", older)))

    assert check.result is Result.OK


async def test_without_a_running_container_the_procfs_cannot_be_told(runtime: CriServer) -> None:
    create(runtime)

    (check,) = await container_runtime.processes(settings(runtime.endpoint))

    assert check.result is Result.UNKNOWN


async def test_a_socket_that_speaks_no_grpc_fails(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        (check,) = await container_runtime.runtime(settings(str(path)))

    assert check.result is Result.FAIL
    assert str(path) in check.what
