"""Provide JobSets for the contract tests: their definition and their policy installed."""

import asyncio
import functools
from pathlib import Path
from typing import Any

import yaml

from kubemend.common import aio
from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.spec import model
from tests import eventually
from tests.unit.jobset import refused

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[3] / "daemonset" / "jobset"
POLICIES = paths.collection("validatingadmissionpolicies", group="admissionregistration.k8s.io")
BINDINGS = paths.collection("validatingadmissionpolicybindings", group="admissionregistration.k8s.io")
DEFINITIONS = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")
WHOLE = paths.collection("jobsets", group="jobset.x-k8s.io", version="v1alpha2")


def collection(namespace: str) -> str:
    """Return the path of a namespace's JobSets."""
    return paths.collection("jobsets", namespace=namespace, group="jobset.x-k8s.io", version="v1alpha2")


@functools.cache
def documents(file: str) -> tuple[Json, ...]:
    """Return the objects of a manifest."""
    return tuple(yaml.safe_load_all((MANIFESTS / file).read_text()))


async def install(api: client.KubeClient) -> None:
    """Install the definition if necessary, and wait until the resource is served."""
    (definition,) = documents("crd.yaml")
    await _install(api, DEFINITIONS, definition)
    async with asyncio.timeout(60):
        async for _ in aio.ticks(period=0.1):  # the real one serves it some time after it reports Established
            try:
                await api.list(WHOLE)
            except errors.NotFoundError:
                continue
            return


async def install_policy(api: client.KubeClient) -> None:
    """Install the policy if necessary, and wait until it is in force; a real API server only."""
    for path, body in zip((POLICIES, BINDINGS), documents("policy.yaml"), strict=True):
        await _install(api, path, body)

    async def refuses() -> bool:
        try:
            await api.create(f"{collection('default')}?dryRun=All", refused.BY_POLICY[0].refused)
        except errors.InvalidError:
            return True
        return False

    await eventually.true(refuses)


async def _install(api: client.KubeClient, path: str, body: Json) -> None:
    """Create an object unless an earlier test has: the server checks all of a large one before it finds that out."""
    try:
        await api.get(f"{path}/{body['metadata']['name']}")
    except errors.NotFoundError:
        await api.create(path, body)


async def lift_policy(api: client.KubeClient) -> None:
    """Remove the policy; it ends with a delay."""
    _, binding = documents("policy.yaml")
    await api.delete(f"{BINDINGS}/{binding['metadata']['name']}")


def others(obj: Json) -> Json:
    """Return the same JobSet as upstream's controller would run it."""
    spec = {key: value for key, value in obj["spec"].items() if key != "managedBy"}
    return {**obj, "apiVersion": model.API_VERSION, "spec": spec}
