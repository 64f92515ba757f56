"""Jobs' controllers beside an API server, as processes: Kubernetes' own where they can be had, else our stand-ins."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from hack.devnode import kubernetes, processes
from hack.devnode.kubelet import process

_MANAGER = "kube-controller-manager"
_STOP_SECONDS = 10.0
_JOBS_AND_GARBAGE = ("job-controller", "garbage-collector-controller")
_NODES = "node-lifecycle-controller"
"""Lifts the taint that a real API server puts on each new node until it is known to be Ready."""


def missing(environ: Mapping[str, str] = os.environ) -> str:
    """Return why there is no real controller manager on this machine, or "" when there is one."""
    return kubernetes.missing(_MANAGER, environ=environ)


@contextlib.asynccontextmanager
async def on(
    kubeconfig: Path, directory: Path, *, real: bool, scheduler: bool = True, backoff: float | None = None
) -> AsyncIterator[None]:
    """Run them for the length of the block; their logs are in ``directory``.

    ``backoff``: seconds before the stand-in makes a failed pod anew; the real one's are ten, and cannot be changed.
    """
    async with contextlib.AsyncExitStack() as stack:
        parts = ["scheduler"] if scheduler else []
        if real:
            controllers = [*_JOBS_AND_GARBAGE, *([_NODES] if scheduler else [])]
            _run(stack, _MANAGER, _manager(kubeconfig, directory, controllers), directory)
        else:
            parts += ["jobs", "garbage"]
        if parts:
            flags = [f"--kubeconfig={kubeconfig}", *(f"--part={each}" for each in parts)]
            flags += [f"--backoff={backoff}"] if backoff is not None else []
            command = [sys.executable, "-m", "hack.devnode.jobcontroller", *flags]
            _run(stack, "jobcontroller", command, directory)
        yield


def _manager(kubeconfig: Path, directory: Path, controllers: Sequence[str]) -> list[str]:
    directory.mkdir(parents=True, exist_ok=True)
    flags = {
        "kubeconfig": str(kubeconfig),
        "controllers": ",".join(controllers),
        "leader-elect": "false",
        "secure-port": "0",
        "cert-dir": str(directory),
        "use-service-account-credentials": "false",
    }
    return [str(kubernetes.program(_MANAGER)), *(f"--{key}={text}" for key, text in flags.items())]


def _run(stack: contextlib.AsyncExitStack, name: str, command: Sequence[str], directory: Path) -> None:
    child = processes.Child.start(
        command,
        name=name,
        log=directory / f"{name}.log",
        pid_file=directory / f"{name}.pid",
        environment=process.source_environment(),
    )
    stack.push_async_callback(child.stop, grace=_STOP_SECONDS)
