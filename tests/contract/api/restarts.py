"""Provide Restart objects for the contract tests, and their definition installed."""

import asyncio
from pathlib import Path
from typing import Any

import yaml

from kubemend.common import aio
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, errors, paths
from kubemend.controller.restarts import names
from kubemend.controller.restarts.objects import NewRound

DEFINITION = Path(__file__).parents[3] / "daemonset" / "crds" / "restarts.yaml"
DEFINITIONS = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")


async def install(api: client.KubeClient) -> None:
    """Install the definition if necessary, and wait until the resource is served."""
    try:
        await api.get(f"{DEFINITIONS}/{names.PLURAL}.{names.GROUP}")
    except errors.NotFoundError:
        await api.create(DEFINITIONS, yaml.safe_load(DEFINITION.read_text()))
    async with asyncio.timeout(60):
        async for _ in aio.ticks(period=0.1):  # the real one serves it some time after it reports Established
            try:
                await api.list(names.WHOLE)
            except errors.NotFoundError:
                continue
            return


def restart(name: str, **spec: Any) -> dict[str, Any]:
    """Return a request; by default for the gang ``train``."""
    wanted = spec or {"gang": {"kind": "Job", "name": "train"}}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": wanted}


def new_round(
    namespace: str, *, name: str = "train", attempt: int = 1, epoch: int = 5, phase: str = "Stopping"
) -> NewRound:
    """Return a round that begins."""
    status = {
        "phase": phase,
        "attempt": attempt,
        "trigger": {"kind": "Device", "member": "train-0", "node": "node-1", "code": "Xid31", "message": "a fault"},
        "decision": {"kind": "InPlace", "reason": "DeviceFault", "detail": "all stay where they are"},
        "members": {"total": 4},
    }
    return NewRound(GangKey(namespace, "Job", name), attempt=attempt, epoch=epoch, status=status)


def done(new: NewRound) -> dict[str, Any]:
    """Return the status of its success."""
    return {
        **new.status,
        "phase": "Done",
        "members": {"total": 4, "inPlace": 4, "running": 4},
        "timings": {"totalMilliseconds": 412},
        "completionTime": "2026-01-31T08:00:00Z",
    }
