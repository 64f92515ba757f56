"""Run all checks concurrently. A check that hangs becomes inconclusive and delays no other."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kubemend.agent.doctor import (
    api_rights,
    container_runtime,
    directories,
    kernel,
    kubemend_services,
    kubernetes_api,
    nvml,
)
from kubemend.agent.doctor.checks import Check, Report, Result
from kubemend.agent.settings import Settings
from kubemend.common.kube import client as kube

TIMEOUT = 10.0
"""Timeout of a check in seconds. NVML has more: nvmlInit takes seconds per GPU without persistence mode."""

_NVML_TIMEOUTS = 3
_NEVER = 3600.0  # seconds; the check's own timeout comes first


@dataclass(frozen=True, slots=True)
class _Probe:
    """The checks of these names, their timeout, and the hint if they time out."""

    names: tuple[str, ...]
    work: Callable[[], Awaitable[Sequence[Check]]]
    timeout_hint: str
    timeout: float


async def examine(settings: Settings, *, timeout: float = TIMEOUT) -> Report:
    """Check all requirements of an agent with these settings. ``timeout`` is in seconds.

    It only reads, except for access reviews and a temporary file in the state directory.
    """
    async with kube.connect(kubeconfig=settings.kubeconfig, deadlines=kube.Deadlines(call=_NEVER)) as api:
        async with asyncio.TaskGroup() as tasks:
            runs = [tasks.create_task(_run(probe)) for probe in _probes(settings, api=api, timeout=timeout)]
        return Report(node=settings.node_name, checks=tuple(check for run in runs for check in run.result()))


def _probes(settings: Settings, *, api: kube.KubeClient, timeout: float) -> tuple[_Probe, ...]:
    server = "is the API server up, and reachable from here?"
    runtime = "see the runtime's log (journalctl -u containerd or crio): it hangs or is overloaded"
    disk = "check whether the file system answers; use a local one"

    def probe(*names: str, work: Callable[[], Awaitable[Sequence[Check]]], timeout_hint: str, times: int = 1) -> _Probe:
        return _Probe(names=names, work=work, timeout_hint=timeout_hint, timeout=times * timeout)

    return (
        probe(container_runtime.RUNTIME, work=lambda: container_runtime.runtime(settings), timeout_hint=runtime),
        probe(*container_runtime.ABILITIES, work=lambda: container_runtime.abilities(settings), timeout_hint=runtime),
        probe(container_runtime.OCI, work=lambda: container_runtime.oci(settings), timeout_hint=runtime),
        probe(container_runtime.PROCESSES, work=lambda: container_runtime.processes(settings), timeout_hint=runtime),
        probe(kubernetes_api.API, work=lambda: kubernetes_api.server(api), timeout_hint=server),
        probe(
            *kubernetes_api.NODE, work=lambda: kubernetes_api.node(api, name=settings.node_name), timeout_hint=server
        ),
        probe(api_rights.RIGHTS, work=lambda: api_rights.needed(api), timeout_hint=server),
        probe(api_rights.NODE, work=lambda: api_rights.for_node(api), timeout_hint=server),
        probe(api_rights.GROUPS, work=lambda: api_rights.for_groups(api), timeout_hint=server),
        probe(api_rights.TRAINING, work=lambda: api_rights.for_training(api), timeout_hint=server),
        probe(
            kubernetes_api.POD_RESOURCES,
            work=lambda: kubernetes_api.pod_resources(settings.pod_resources_socket),
            timeout_hint="see kubelet's log: it hangs or is overloaded",
        ),
        probe(
            kernel.KERNEL_LOG,
            work=lambda: kernel.log_readable(settings.kernel_log, proc=settings.proc),
            timeout_hint="pass /dev/kmsg, or a regular file of records in its format, with --kernel-log",
        ),
        probe(
            *nvml.NAMES,
            work=lambda: nvml.gpus(sysfs=settings.sysfs, proc=settings.proc, hang_deadline=timeout),
            timeout_hint="run nvidia-smi on the node and look for NVRM in its kernel log",
            times=_NVML_TIMEOUTS,
        ),
        probe(kernel.CGROUPS, work=lambda: kernel.freezer(settings.sysfs), timeout_hint=disk),
        probe(kernel.STANDBY, work=lambda: kernel.standby(settings), timeout_hint=runtime),
        probe(directories.STATE, work=lambda: directories.state(settings.state_dir), timeout_hint=disk),
        probe(directories.JOURNAL, work=lambda: directories.quarantined(settings.state_dir), timeout_hint=disk),
        probe(directories.LINKS, work=lambda: directories.log_links(settings.pod_log_symlinks), timeout_hint=disk),
        probe(
            kubemend_services.HUB,
            work=lambda: kubemend_services.hub(settings),
            timeout_hint=kubemend_services.DROPPED,
        ),
        probe(
            kubemend_services.AGENT,
            work=lambda: kubemend_services.running_agent(settings.listen()),
            timeout_hint="see the agent's log; another process may listen there",
        ),
    )


async def _run(probe: _Probe) -> Sequence[Check]:
    try:
        async with asyncio.timeout(probe.timeout):
            return await probe.work()
    except TimeoutError:
        what, hint = f"no answer within {probe.timeout:g} s", probe.timeout_hint
    except OSError as error:
        what, hint = f"could not be checked: {error}", "run as root on the node, or in the agent's pod"
    return tuple(Check(name=name, result=Result.UNKNOWN, what=what, hint=hint) for name in probe.names)
