"""Read the API server for user commands: errors are one line and an exit code, never a traceback."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from kubemend.common.gangs import GANG, JOB_INDEX, JOBSET_NAME, LWS_GROUP
from kubemend.common.kube import client, config, errors, paths
from kubemend.controller.restarts import names

EXIT_UNKNOWN: Final = 3

NOT_INSTALLED: Final = "the cluster does not know Restart objects: kubectl apply -f daemonset/crds/restarts.yaml"

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_OF_GANGS: Final = (GANG, JOBSET_NAME, JOB_INDEX, LWS_GROUP)
"""Labels that put pods in gangs (``common.gangs.key``); a selector has no "or", so each is a list of its own."""

Json = dict[str, Any]


class UndeterminedError(click.ClickException):
    """The information cannot be read; the text has the reason and the hint."""

    exit_code = EXIT_UNKNOWN


class NotInstalledError(UndeterminedError):
    """The cluster does not know Restart objects."""

    def __init__(self) -> None:
        super().__init__(NOT_INSTALLED)


@contextlib.asynccontextmanager
async def api(kubeconfig: Path | None) -> AsyncIterator[client.KubeClient]:
    """Provide a client. Its errors within the block become UndeterminedError."""
    async with client.connect(kubeconfig=kubeconfig) as connected:
        try:
            yield connected
        except errors.KubeError as error:
            raise UndeterminedError(str(error)) from error


async def gang_pods(api: client.KubeClient, *, namespace: str | None) -> list[Json]:
    """Return all pods that may be members of gangs, in one namespace or (None) in all. Raises KubeError."""
    found: dict[str, Json] = {}
    for label in _OF_GANGS:
        path = paths.collection("pods", namespace=namespace)
        async with contextlib.aclosing(api.pages(path, params={"labelSelector": label})) as pages:
            async for page in pages:
                found.update((pod["metadata"]["uid"], pod) for pod in page.items)
    return list(found.values())


async def restarts(api: client.KubeClient, *, namespace: str | None) -> list[Json]:
    """Return all Restart objects. Raises KubeError, NotInstalledError."""
    path = names.collection(namespace) if namespace is not None else names.WHOLE
    found: list[Json] = []
    try:
        async with contextlib.aclosing(api.pages(path)) as pages:
            async for page in pages:
                found += page.items
    except errors.NotFoundError as error:  # a known resource without objects gives an empty list
        raise NotInstalledError from error
    return found


async def restart(api: client.KubeClient, *, namespace: str, name: str) -> Json:
    """Return one Restart object. Raises KubeError, NotInstalledError."""
    try:
        return await api.get(names.path(namespace, name))
    except errors.NotFoundError as error:
        if f'"{name}"' not in error.what:  # "404 page not found": the server does not know the path at all
            raise NotInstalledError from error
        text = f"there is no Restart {name} in namespace {namespace}: kubectl get restarts -A lists them"
        raise UndeterminedError(text) from error


def current_namespace(kubeconfig: Path | None, *, environ: Mapping[str, str] = os.environ) -> str:
    """Return kubectl's default namespace: that of the kubeconfig's current context, or in a pod the pod's own."""
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in environ:
            return _SERVICE_ACCOUNT.read_text().strip()
        files = [kubeconfig] if kubeconfig is not None else config.default_kubeconfigs(environ)
        _, context = config.current_context(files)
        return str(context.get("namespace") or "default")
    except (errors.NotConfiguredError, OSError, yaml.YAMLError, UnicodeDecodeError):
        return "default"  # connecting meets the same error and reports it
