"""``doctor`` on a whole node: everything works; one thing is missing; the agent's own status."""

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from kubemend.agent.doctor import checks, examine, rendering
from kubemend.agent.doctor.checks import Report, Result
from kubemend.agent.settings import Settings
from tests.scenarios import training

pytestmark = pytest.mark.devnode


@pytest.fixture
def settings(dev: node.DevNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The agent's settings on this node; its NVML is the node's fake."""
    for name, value in dev.nvml.env().items():
        monkeypatch.setenv(name, value)
    flags = dev.agent_flags(metrics_address="127.0.0.1:1")
    return Settings(
        node_name=flags["node-name"],
        kubeconfig=Path(flags["kubeconfig"]),
        cri_endpoint=flags["cri-endpoint"],
        pod_resources_socket=flags["pod-resources-socket"],
        kernel_log=Path(flags["kernel-log"]),
        state_dir=tmp_path,
        pod_log_symlinks=Path(flags["pod-log-symlinks"]),
        metrics_address=flags["metrics-address"],
    )


def results(report: Report) -> dict[str, Result]:
    return {check.name: check.result for check in report.checks}


async def test_complete_node_passes_all_checks(dev: node.DevNode, observer: Observer, settings: Settings) -> None:
    async with training.pod(dev, observer, "examined"):
        report = await examine.examine(settings, timeout=training.DEADLINE)

    text = rendering.text(report, colour=False)
    assert report.exit_code == checks.EXIT_WORKS, text
    found = results(report)
    # The cgroup version and the file system under the tests are the machine's own; the agent does not run and has never
    # run, and no hub is configured.
    by_machine = ("cgroups", "state-directory", "restart-rules", "journal", "agent", "hub")
    others = {name: result for name, result in found.items() if name not in by_machine}
    assert set(others.values()) == {Result.OK}, text
    assert found["agent"] is found["hub"] is found["journal"] is Result.NOT_NEEDED


async def test_running_agent_reports_its_components(dev: node.DevNode, settings: Settings, tmp_path: Path) -> None:
    async with dev.agent(f"--state-dir={tmp_path / 'state'}") as agent:
        await readyz.until_ready(agent)
        report = await examine.examine(dataclasses.replace(settings, metrics_address=agent.metrics_address))

    assert results(report)["agent"] is Result.OK


async def test_a_missing_runtime_socket_is_named_and_hides_nothing_else(
    dev: node.DevNode, settings: Settings, tmp_path: Path
) -> None:
    missing = str(tmp_path / "none.sock")

    report = await examine.examine(dataclasses.replace(settings, cri_endpoint=missing), timeout=training.DEADLINE)

    assert report.exit_code == checks.EXIT_DOES_NOT_WORK
    found = {check.name: check for check in report.checks}
    assert found["container-runtime"].result is Result.FAIL
    assert missing in found["container-runtime"].what
    assert found["container-runtime"].hint
    broken = {name for name, check in found.items() if not check.result.works}
    runtime = {"container-runtime", "container-config", "container-events", "oci-runtime", "host-processes"}
    assert broken == runtime | {"standby"}


async def doctor(dev: node.DevNode, flags: Mapping[str, str], *more: str) -> "subprocess.CompletedProcess[str]":
    """Run the command as a person would."""
    line = [
        sys.executable,
        "-m",
        "kubemend.agent.cli",
        "doctor",
        *(f"--{key}={value}" for key, value in flags.items()),
        *more,
    ]
    return await asyncio.to_thread(
        subprocess.run,
        line,
        env=dev.agent_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_command_exits_with_0_if_all_works(dev: node.DevNode, observer: Observer, tmp_path: Path) -> None:
    flags = dev.agent_flags(metrics_address="127.0.0.1:1") | {"state-dir": str(tmp_path)}
    async with training.pod(dev, observer, "examined-too"):
        done = await doctor(dev, flags)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1].startswith(f"node {dev.name}: ")
    assert done.stderr == ""


async def test_command_exits_with_1_and_prints_the_hint(dev: node.DevNode, tmp_path: Path) -> None:
    missing = tmp_path / "none.sock"
    flags = dev.agent_flags(metrics_address="127.0.0.1:1") | {"state-dir": str(tmp_path), "cri-endpoint": str(missing)}
    done = await doctor(dev, flags, "--json")
    assert done.returncode == 1, done
    report = json.loads(done.stdout)
    assert report["works"] is False
    (runtime,) = [check for check in report["checks"] if check["name"] == "container-runtime"]
    assert (runtime["result"], str(missing) in runtime["what"]) == ("fail", True)
    assert runtime["hint"]
