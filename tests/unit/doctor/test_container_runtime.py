"""The doctor's checks of the container runtime: present, absent, another service; and its features."""

import json
import os
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kubemend.agent.doctor import container_runtime
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.settings import Settings
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


async def test_running_runtime_is_named_with_its_socket(runtime: CriServer) -> None:
    (check,) = await container_runtime.runtime(settings(runtime.endpoint))

    assert (check.result, check.hint) == (Result.OK, "")
    assert check.what == f"containerd 2.1.9 at {runtime.endpoint} (set explicitly)"


async def test_missing_socket_fails_and_is_named(tmp_path: Path) -> None:
    (check,) = await container_runtime.runtime(settings(str(tmp_path / "none.sock")))

    assert check.result is Result.FAIL
    assert str(tmp_path / "none.sock") in check.what
    assert "start the container runtime" in check.hint


async def test_endpoint_that_is_not_a_socket_path_fails(tmp_path: Path) -> None:
    (check,) = await container_runtime.runtime(settings("tcp://127.0.0.1:1"))

    assert check.result is Result.FAIL
    assert "unix://" in check.hint


async def test_foreign_service_at_socket_fails(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    other = grpc.aio.server()
    other.add_insecure_port(f"unix://{path}")
    await other.start()

    (check,) = await container_runtime.runtime(settings(str(path)))
    await other.stop(grace=None)

    assert check.result is Result.FAIL
    assert "not CRI v1" in check.what


async def test_runtime_without_config_and_events_is_a_warning(runtime: CriServer) -> None:
    start(runtime, create(runtime))
    runtime.runtime.behaviour.gives_config = False
    runtime.fail("GetContainerEvents", grpc.StatusCode.UNIMPLEMENTED)

    config, events = await container_runtime.abilities(settings(runtime.endpoint))

    assert [config.result, events.result] == [Result.WARN, Result.WARN]
    assert "no restarts by swap" in config.what
    assert "listed every second" in events.what


async def test_runtime_with_all_features_is_ok(runtime: CriServer) -> None:
    start(runtime, create(runtime))

    checks = await container_runtime.abilities(settings(runtime.endpoint))

    assert [check.result for check in checks] == [Result.OK, Result.OK]


async def test_config_check_without_container_is_unknown(runtime: CriServer) -> None:
    config, events = await container_runtime.abilities(settings(runtime.endpoint))

    assert [config.result, events.result] == [Result.UNKNOWN, Result.OK]


async def test_checks_that_need_a_missing_runtime_are_unknown_with_pointer(tmp_path: Path) -> None:
    missing = settings(str(tmp_path / "none.sock"))

    checks = [*await container_runtime.abilities(missing), *await container_runtime.processes(missing)]

    assert [check.name for check in checks] == [*container_runtime.ABILITIES, container_runtime.PROCESSES]
    assert {(check.result, check.what, check.hint) for check in checks} == {
        (Result.UNKNOWN, "the runtime could not be queried", "see container-runtime")
    }


async def test_call_refused_by_runtime_is_reported(runtime: CriServer) -> None:
    runtime.fail("ListContainers", grpc.StatusCode.INTERNAL, details="disk on fire")

    (check,) = await container_runtime.processes(settings(runtime.endpoint))

    assert check.result is Result.UNKNOWN
    assert "disk on fire" in check.what


async def test_procfs_with_the_containers_is_the_hosts(runtime: CriServer, tmp_path: Path) -> None:
    container = create(runtime)
    start(runtime, container)

    (check,) = await container_runtime.processes(settings(runtime.endpoint, proc=shown(tmp_path / "p", container)))

    assert check.result is Result.OK


@pytest.mark.parametrize("other", [None, "f" * 64])
async def test_procfs_of_another_pid_namespace_fails(runtime: CriServer, tmp_path: Path, other: str | None) -> None:
    start(runtime, create(runtime))
    proc = shown(tmp_path / "p", other) if other else tmp_path

    (check,) = await container_runtime.processes(settings(runtime.endpoint, proc=proc))

    assert check.result is Result.FAIL
    assert "hostPID" in check.hint


async def test_one_matching_container_proves_the_procfs(runtime: CriServer, tmp_path: Path) -> None:
    older, newer = create(runtime, "older"), create(runtime, "newer")
    start(runtime, older)
    start(runtime, newer)

    (check,) = await container_runtime.processes(settings(runtime.endpoint, proc=shown(tmp_path / "p", older)))

    assert check.result is Result.OK


async def test_procfs_check_without_running_container_is_unknown(runtime: CriServer) -> None:
    create(runtime)

    (check,) = await container_runtime.processes(settings(runtime.endpoint))

    assert check.result is Result.UNKNOWN


async def test_socket_without_grpc_fails(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        (check,) = await container_runtime.runtime(settings(str(path)))

    assert check.result is Result.FAIL
    assert str(path) in check.what


def with_programs(proc: Path, *files: str) -> Path:
    """Make a procfs in which this process, which serves the stand-in runtime, has these files."""
    root = proc / str(os.getpid()) / "root"
    root.mkdir(parents=True)
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return proc


async def oci(runtime: CriServer, proc: Path, *, program: str) -> Check:
    options = {"BinaryName": program}
    entry = {"runtimeType": "io.containerd.runc.v2", "options": options}
    runtime.runtime.behaviour.config = json.dumps({"containerd": {"runtimes": {"runc": entry}}})
    (check,) = await container_runtime.oci(settings(runtime.endpoint, proc=proc))
    return check


async def test_oci_runtime_that_the_runtime_names_is_found_outside_the_search_path(
    runtime: CriServer, tmp_path: Path
) -> None:
    check = await oci(runtime, with_programs(tmp_path / "p", "opt/crun-1/crun"), program="/opt/crun-1/crun")
    assert (check.result, check.what) == (Result.OK, "/opt/crun-1/crun")


async def test_named_program_that_is_no_path_is_a_warning_with_its_reason(runtime: CriServer, tmp_path: Path) -> None:
    check = await oci(runtime, with_programs(tmp_path / "p", "usr/bin/runc"), program="../crun")
    assert check.result is Result.WARN
    assert "'../crun', the program of the runtime 'runc', is neither" in check.what
    assert "(NoProgram); found by search path and name: /usr/bin/runc" in check.what
    assert "BinaryName" in check.hint


async def test_no_oci_runtime_at_all_is_a_warning(runtime: CriServer, tmp_path: Path) -> None:
    check = await oci(runtime, with_programs(tmp_path / "p"), program="/opt/gone/crun")
    assert check.result is Result.WARN
    assert "/opt/gone/crun" in check.what
