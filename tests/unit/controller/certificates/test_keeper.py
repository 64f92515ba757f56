"""The Secret and the ConfigMap, with several replicas at once, and a server that needs no restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from kubemend.common.kube import client as kube
from kubemend.common.kube import errors
from kubemend.controller.certificates.keeper import Keeper, KeeperOptions
from kubemend.controller.certificates.plan import DAY
from tests.control_plane import Tenant


class _Clock:
    """A clock that the test moves; it begins at the machine's time, which TLS uses."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _Cluster:
    """A namespace in which keepers store certificates."""

    def __init__(self, tenant: Tenant, api: kube.KubeClient) -> None:
        self.api = api
        self.server = tenant.server
        self.secret = f"{tenant.of('secrets')}/kubemend-hub-tls"
        self.config_map = f"{tenant.of('configmaps')}/kubemend-hub-ca"
        self._options = KeeperOptions(namespace=tenant.namespace, extra_names=("127.0.0.1", "0:0:0:0:0:0:0:1"))

    def keeper(self, clock: _Clock) -> Keeper:
        return Keeper(self.api, self._options, clock=clock)

    async def data(self, path: str) -> dict[str, Any]:
        return dict((await self.api.get(path))["data"])

    async def kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents of the Secret and the ConfigMap."""
        return await self.data(self.secret), await self.data(self.config_map)


@pytest.fixture
async def cluster(tenant: Tenant) -> AsyncIterator[_Cluster]:
    async with tenant.client() as api:
        yield _Cluster(tenant, api)


@pytest.fixture
def clock() -> _Clock:
    import time

    return _Clock(time.time())


async def test_keeper_stores_certificates_and_publishes_ca(cluster: _Cluster, clock: _Clock) -> None:
    keeper = cluster.keeper(clock)
    await keeper.ready()
    secret, published = await cluster.kept()
    assert sorted(secret) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert published["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    await keeper.refresh()
    assert await cluster.kept() == (secret, published)


async def test_concurrent_first_start_of_replicas_agrees(cluster: _Cluster, clock: _Clock) -> None:
    await asyncio.gather(*(cluster.keeper(clock).ready() for _ in range(5)))
    secret, published = await cluster.kept()
    await cluster.keeper(clock).refresh()
    assert await cluster.kept() == (secret, published)


async def test_concurrent_renewal_of_replicas_agrees(cluster: _Cluster, clock: _Clock) -> None:
    keepers = [cluster.keeper(clock) for _ in range(5)]
    await asyncio.gather(*(keeper.refresh() for keeper in keepers))
    clock.now += 740 * DAY
    await asyncio.gather(*(keeper.refresh() for keeper in keepers))
    secret, published = await cluster.kept()
    assert published["ca.crt"].count("BEGIN CERTIFICATE") == 2
    await asyncio.gather(*(keeper.refresh() for keeper in keepers))
    assert await cluster.kept() == (secret, published)


async def test_corrupted_bundle_is_restored(cluster: _Cluster, clock: _Clock) -> None:
    keeper = cluster.keeper(clock)
    await keeper.refresh()
    published = await cluster.data(cluster.config_map)
    await cluster.api.patch(cluster.config_map, {"data": {"ca.crt": "x"}}, content_type=kube.Patch.MERGE)
    await keeper.refresh()
    assert await cluster.data(cluster.config_map) == published


async def test_foreign_labels_are_kept(cluster: _Cluster, clock: _Clock) -> None:
    keeper = cluster.keeper(clock)
    await keeper.refresh()
    await cluster.api.patch(cluster.secret, {"metadata": {"labels": {"a": "b"}}}, content_type=kube.Patch.MERGE)
    clock.now += 70 * DAY
    before = await cluster.data(cluster.secret)
    await keeper.refresh()
    after = await cluster.api.get(cluster.secret)
    assert after["metadata"]["labels"] == {"a": "b"}
    assert after["data"]["tls.crt"] != before["tls.crt"]


async def test_keeper_without_api_server_logs_and_keeps_serving(cluster: _Cluster, clock: _Clock) -> None:
    keeper = cluster.keeper(clock)
    await keeper.ready()
    await cluster.server.stop()
    with pytest.raises(errors.ApiUnavailableError):
        await keeper.refresh()
    keeper.credentials()


def test_credentials_before_first_certificate_raise(clock: _Clock, tmp_path: Path) -> None:
    keeper = Keeper(kube.connect(kubeconfig=tmp_path / "none"), KeeperOptions(namespace="kubemend"), clock=clock)
    with pytest.raises(RuntimeError, match="no certificate yet"):
        keeper.credentials()


async def test_running_server_serves_new_certificate(cluster: _Cluster, clock: _Clock) -> None:
    """Create the first certificate so long ago that the CA changes now. Connections stay open."""
    clock.now -= 740 * DAY
    keeper = cluster.keeper(clock)
    await keeper.refresh()
    first = (await cluster.data(cluster.config_map))["ca.crt"]
    clock.now += 70 * DAY
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", {"Say": _ECHO}),))
    port = server.add_secure_port("127.0.0.1:0", keeper.credentials())
    await server.start()
    try:
        clock.now += 660 * DAY
        await keeper.refresh()  # publishes the next CA
        clock.now += 10 * DAY
        await keeper.refresh()  # and uses it
        last = (await cluster.data(cluster.config_map))["ca.crt"]
        assert await _say(port, last) is None
        assert await _say(port, first) is grpc.StatusCode.UNAVAILABLE
    finally:
        await server.stop(None)


async def _echo(request: bytes, _: object) -> bytes:
    return request


_ECHO: "grpc.RpcMethodHandler[Any, Any]" = grpc.unary_unary_rpc_method_handler(_echo)


async def _say(port: int, bundle: str) -> grpc.StatusCode | None:
    """Call the server, trusting this bundle; return the error's code."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(bundle.encode())
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        try:
            say: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.Echo/Say")
            assert await say(b"hello", timeout=30) == b"hello"
        except grpc.aio.AioRpcError as error:
            return error.code()
    return None
