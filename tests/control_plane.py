"""Provide one real etcd and kube-apiserver for each worker process, and in it a namespace for each test.

They start with the first test that requests them and end with the session. No controllers run: a namespace stays when
its test is over (objects that a later test could see in watches of the whole cluster are deleted), and no default
service accounts appear. Tests that use the fixtures get the marker ``kubernetes``.
"""

import asyncio
import contextlib
import http.client
import io
import json
import ssl
import time
import urllib.error
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from hack.devnode import apiproxy, apiserver
from kubemend.common import aio
from kubemend.common.kube import client, errors, paths

Json = dict[str, Any]

DEADLINES: Final = client.Deadlines(connect=30.0, call=60.0)
"""For clients whose deadlines are not tested: the machine may be busy."""

# kube-apiserver serves a beta API only on request.
_OPTIONS: Final = (
    "--runtime-config=resource.k8s.io/v1beta2=true,resource.k8s.io/v1alpha3=true",
    "--feature-gates=DRADeviceTaintRules=true",
)
_DAEMONSET: Final = Path(__file__).parents[1] / "daemonset"
_DEFINITIONS: Final = (_DAEMONSET / "crds" / "restarts.yaml", _DAEMONSET / "jobset" / "crd.yaml")
_SECONDS: Final = 120.0
_IDLE_SECONDS: Final = 60.0  # the server closes a connection that is unused for 90 s
_SEEN_BY_OTHERS: Final = (
    ("pods", "", "v1"),
    ("jobs", "batch", "v1"),
    ("jobsets", "jobset.x-k8s.io", "v1alpha2"),
    ("restarts", "restarts.kubemend.io", "v1alpha1"),
)
"""Remains of a test that watches of the whole cluster would show: plural, group, version."""


class ControlPlane:
    """The server as a fixture sees it: without an event loop, because each test has its own."""

    def __init__(self, server: apiserver.KubeApiServer) -> None:
        self._kubeconfig = server.kubeconfig
        config = yaml.safe_load(server.kubeconfig.read_text())
        address = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        tls = ssl.create_default_context(cafile=config["clusters"][0]["cluster"]["certificate-authority"])
        self._connection = http.client.HTTPSConnection(urlsplit(address).netloc, timeout=_SECONDS, context=tls)
        self._used_at = 0.0

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kubeconfig

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send one request as administrator and return the answer. Raises urllib.error.HTTPError."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self.close()
        try:
            self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            with self._connection.getresponse() as answer:
                text = answer.read()
        except (http.client.HTTPException, OSError):
            self.close()
            raise
        self._used_at = time.monotonic()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise urllib.error.HTTPError(path, answer.status, answer.reason, answer.headers, io.BytesIO(text))
        found: Json = json.loads(text)
        return found

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._connection.close()

    def remove(self, path: str) -> None:
        """Delete an object or a collection at once, if it exists; finalizers delay that."""
        try:
            self.call("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != HTTPStatus.NOT_FOUND:
                raise


@dataclass(frozen=True, slots=True)
class Tenant:
    """One test's part of the API server: a namespace, the name of a node, and a proxy that can be made to fail."""

    server: apiproxy.ApiProxy
    namespace: str
    node: str

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig through the proxy."""
        return self.server.kubeconfig

    def client(self, deadlines: client.Deadlines = DEADLINES) -> client.KubeClient:
        """Return a client that goes through the proxy; use it as ``async with``."""
        return client.connect(kubeconfig=self.kubeconfig, deadlines=deadlines)

    def of(self, plural: str, *, group: str = "", version: str = "v1") -> str:
        """Return the path of a collection in the namespace."""
        return paths.collection(plural, namespace=self.namespace, group=group, version=version)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The API server of this worker process, with our definitions of custom resources served."""
    if reason := apiserver.missing():
        pytest.fail(reason, pytrace=False)
    server = apiserver.KubeApiServer(tmp_path_factory.mktemp("kube"), options=_OPTIONS)
    with asyncio.Runner() as runner:  # its processes are bound to no loop
        try:
            runner.run(server.start())
            found = ControlPlane(server)
            with contextlib.closing(found):
                runner.run(_define(server.kubeconfig))
                yield found
        finally:
            runner.run(server.end())


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own."""
    made = control_plane.call("POST", paths.collection("namespaces"), {"metadata": {"generateName": "test-"}})
    name = str(made["metadata"]["name"])
    yield name
    for plural, group, version in _SEEN_BY_OTHERS:
        control_plane.remove(paths.collection(plural, namespace=name, group=group, version=version))


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[str]:
    """A node's name of the test's own; the test may create the node."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    yield name
    control_plane.remove(f"{paths.NODES}/{name}")


@pytest.fixture
async def tenant(control_plane: ControlPlane, namespace: str, node: str, tmp_path: Path) -> AsyncIterator[Tenant]:
    """The test's part of the API server, behind a proxy."""
    async with apiproxy.ApiProxy(control_plane.kubeconfig, kubeconfig=tmp_path / "proxy" / "kubeconfig") as proxy:
        yield Tenant(proxy, namespace, node)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the API server, before markers select the tests to run."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubernetes)


async def _define(kubeconfig: Path) -> None:
    """Create our definitions of custom resources, and wait until they are served."""
    async with client.connect(kubeconfig=kubeconfig, deadlines=DEADLINES) as api:
        for file in _DEFINITIONS:
            await define(api, yaml.safe_load(file.read_text()))


async def define(api: client.KubeClient, definition: Json) -> None:
    """Create a definition of a custom resource, and wait until it is served: that is later than ``Established``."""
    await api.create(paths.collection("customresourcedefinitions", group="apiextensions.k8s.io"), definition)
    spec = definition["spec"]
    async with asyncio.timeout(_SECONDS):
        for version in spec["versions"]:
            path = paths.collection(spec["names"]["plural"], group=spec["group"], version=version["name"])
            async for _ in aio.ticks(period=0.05):
                with contextlib.suppress(errors.NotFoundError):
                    await api.list(path)
                    break
