"""The whole examination: a bare machine, and one on which everything hangs."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode import kubeconfig
from hack.fakenvml.control import FakeNvml
from kubemend.agent.doctor import examine
from kubemend.agent.doctor.checks import Report, Result
from kubemend.agent.settings import Settings
from tests.fakes.cri_server import CriServer

NAMES = (
    "container-runtime",
    "container-config",
    "container-events",
    "oci-runtime",
    "host-processes",
    "kubernetes-api",
    "node",
    "kubelet",
    "restart-rules",
    "api-rights",
    "api-rights-node",
    "api-rights-groups",
    "api-rights-training",
    "pod-resources",
    "kernel-log",
    "nvml",
    "gpu-events",
    "cgroups",
    "standby",
    "state-directory",
    "journal",
    "log-links",
    "hub",
    "agent",
)


def by_name(report: Report) -> dict[str, Result]:
    return {check.name: check.result for check in report.checks}


def bare(tmp_path: Path, port: int) -> Settings:
    """Settings with all paths in an empty directory."""
    return Settings(
        node_name="n",
        kubeconfig=tmp_path / "kubeconfig",
        cri_endpoint=str(tmp_path / "cri.sock"),
        pod_resources_socket=str(tmp_path / "pr.sock"),
        kernel_log=tmp_path / "kmsg",
        state_dir=tmp_path / "state",
        pod_log_symlinks=tmp_path / "links",
        proc=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        metrics_address=f"127.0.0.1:{port}",
    )


def found(directory: Path) -> set[str]:
    """Return all paths below a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@contextlib.asynccontextmanager
async def mute() -> AsyncIterator[int]:
    """A TCP server that accepts connections and never answers; yields its port."""
    writers: list[asyncio.StreamWriter] = []

    async def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()
    for writer in writers:
        writer.close()


async def test_bare_machine_gives_results_with_hints(tmp_path: Path, unused_tcp_port: int) -> None:
    report = await examine.examine(bare(tmp_path, unused_tcp_port))

    assert tuple(check.name for check in report.checks) == NAMES
    assert all(check.hint for check in report.checks if not check.result.works)
    assert {name for name, result in by_name(report).items() if result is Result.FAIL} >= {
        "container-runtime",
        "kubernetes-api",
        "pod-resources",
        "kernel-log",
        "log-links",
    }
    assert report.exit_code == 1


async def test_hanging_check_is_unknown_and_delays_no_other(
    tmp_path: Path, runtime: CriServer, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("Version", "Status", "ListContainers"):
        runtime.delay(method, 3600)
    fake.hang()
    monkeypatch.setattr(examine, "_NVML_TIMEOUTS", 30)  # a busy machine starts the probe's process slowly
    thawed = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda descriptor: thawed.wait())
    (tmp_path / "kmsg").touch()
    (tmp_path / "links").mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(tmp_path / "pr.sock"))
        kubelet.listen()
        async with mute() as port:
            kubeconfig.write(tmp_path / "kubeconfig", server=f"http://127.0.0.1:{port}", token="x")
            report = await examine.examine(bare(tmp_path, port), timeout=2.0)
    thawed.set()

    results = by_name(report)
    assert tuple(results) == NAMES
    working = {name for name, result in results.items() if result.works}
    assert working == {"kernel-log", "journal", "log-links", "hub"}
    assert results["nvml"] is Result.FAIL  # the hanging call is known: the driver does not answer
    assert {name for name, result in results.items() if result is Result.FAIL} == {"nvml"}
    assert all(check.hint for check in report.checks if not check.result.works)


async def test_examination_leaves_no_files_behind(tmp_path: Path, unused_tcp_port: int) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "links").mkdir()

    await examine.examine(bare(tmp_path, unused_tcp_port))

    assert found(tmp_path) == {"links", "state"}
