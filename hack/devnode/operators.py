"""Run other projects' controllers on a dev node's API server: their definitions, certificates, webhooks and readiness.

Each is a process outside the cluster with the administrator's kubeconfig, so its webhooks are called by their address.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp

from hack.devnode import processes
from kubemend.common import aio
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

HOST: Final = "127.0.0.1"
_DEFINITIONS: Final = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")
_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1

Json = dict[str, Any]


async def define(api: kube.KubeClient, definitions: Iterable[Json]) -> None:
    """Create definitions of custom resources, or keep the existing ones, and wait until all are served.

    Raises TimeoutError.
    """
    wanted = [*definitions]
    for each in wanted:
        with contextlib.suppress(errors.ConflictError):
            await api.create(_DEFINITIONS, each)
    async with asyncio.timeout(_START_SECONDS):
        for each in wanted:
            await _is_served(api, each["spec"])


async def write_certificate(where: Path) -> None:
    """Write a certificate for webhooks on this machine, its own authority, as ``tls.crt`` and ``tls.key``.

    Raises processes.ProcessError.
    """
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=webhooks"]
    command += ["-addext", f"subjectAltName=IP:{HOST}"]
    command += ["-keyout", str(where / "tls.key"), "-out", str(where / "tls.crt")]
    openssl = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    if await openssl.wait() != 0:
        raise processes.ProcessError(f"openssl could not write {where / 'tls.crt'}; is it installed?")


async def until_ready(child: processes.Child, *, port: int, log: Path, path: str = "readyz") -> None:
    """Wait until a controller's ``/readyz``, or another ``path``, answers.

    Raises processes.ProcessError when it ends, TimeoutError.
    """
    async with asyncio.timeout(_START_SECONDS), aiohttp.ClientSession(trust_env=False) as session:
        async for _ in aio.ticks(period=_LOOK_SECONDS):
            if child.returncode is not None:
                raise processes.ProcessError(f"{child.name} ended ({child.returncode}); see {log}")
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(f"http://{HOST}:{port}/{path}") as answer:
                    if answer.ok:
                        return


async def until_served(path: str, *, port: int) -> None:
    """Wait until a controller answers at a webhook's path: it is ready before that. Raises TimeoutError."""
    async with asyncio.timeout(_START_SECONDS), aiohttp.ClientSession(trust_env=False) as session:
        async for _ in aio.ticks(period=_LOOK_SECONDS):
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.get(f"https://{HOST}:{port}{path}", ssl=False) as answer:
                    if answer.status != HTTPStatus.NOT_FOUND:
                        return


@contextlib.asynccontextmanager
async def webhooks(
    api: kube.KubeClient,
    configurations: Iterable[Json],
    *,
    port: int,
    bundle: bytes,
    wanted: Callable[[Json], bool] = lambda _: True,
) -> AsyncIterator[None]:
    """Have the API server call the ``wanted`` ones of these webhooks for the length of the block."""
    made = []
    try:
        for configuration in configurations:
            kept = [each for each in configuration["webhooks"] if wanted(each)]
            for each in kept:
                path = each["clientConfig"].pop("service")["path"]
                each["clientConfig"]["url"] = f"https://{HOST}:{port}{path}"
                each["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
            configuration["webhooks"] = kept
            resource = f"{configuration['kind'].lower()}s"
            collection = paths.collection(resource, group="admissionregistration.k8s.io")
            await api.create(collection, configuration)
            made.append(f"{collection}/{configuration['metadata']['name']}")
        yield
    finally:
        for path in made:
            await api.delete(path)


async def _is_served(api: kube.KubeClient, spec: Json) -> None:
    for version in spec["versions"]:
        if version["served"]:
            path = paths.collection(spec["names"]["plural"], group=spec["group"], version=version["name"])
            async for _ in aio.ticks(period=_LOOK_SECONDS):
                with contextlib.suppress(errors.NotFoundError):
                    await api.list(path)
                    break
