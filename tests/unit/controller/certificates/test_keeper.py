"""The Secret and the ConfigMap, with several replicas at once, and the server that needs no restart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from common.kube import client as kube
from common.kube import errors, paths
from controller.certificates.keeper import Keeper, KeeperOptions
from controller.certificates.plan import DAY
from hack.devnode.api import standin

_OPTIONS = KeeperOptions(namespace="kubemend", extra_names=("127.0.0.1", "0:0:0:0:0:0:0:1"))
_SECRET = f"{paths.collection('secrets', namespace='kubemend')}/kubemend-hub-tls"
_CONFIG_MAP = f"{paths.collection('configmaps', namespace='kubemend')}/kubemend-hub-ca"


class _Clock:
    """A clock that a test moves; it begins at the machine's time, which TLS goes by."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[kube.KubeClient]:
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        kube.connect(kubeconfig=server.kubeconfig) as client,
    ):
        await client.create(paths.collection("namespaces"), {"metadata": {"name": "kubemend"}})
        yield client


@pytest.fixture
def clock() -> _Clock:
    import time

    return _Clock(time.time())


async def _data(api: kube.KubeClient, path: str) -> dict[str, Any]:
    return dict((await api.get(path))["data"])


async def test_what_is_made_is_kept_and_its_ca_published(api: kube.KubeClient, clock: _Clock) -> None:
    keeper = Keeper(api, _OPTIONS, clock=clock)
    await keeper.ready()
    secret, published = await _data(api, _SECRET), await _data(api, _CONFIG_MAP)
    assert sorted(secret) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    assert published["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    await keeper.look()
    assert (await _data(api, _SECRET), await _data(api, _CONFIG_MAP)) == (secret, published)


async def test_replicas_that_start_at_once_agree(api: kube.KubeClient, clock: _Clock) -> None:
    await asyncio.gather(*(Keeper(api, _OPTIONS, clock=clock).ready() for _ in range(5)))
    secret, published = await _data(api, _SECRET), await _data(api, _CONFIG_MAP)
    await Keeper(api, _OPTIONS, clock=clock).look()
    assert (await _data(api, _SECRET), await _data(api, _CONFIG_MAP)) == (secret, published)


async def test_replicas_that_renew_at_once_agree(api: kube.KubeClient, clock: _Clock) -> None:
    keepers = [Keeper(api, _OPTIONS, clock=clock) for _ in range(5)]
    await asyncio.gather(*(keeper.look() for keeper in keepers))
    clock.now += 740 * DAY
    await asyncio.gather(*(keeper.look() for keeper in keepers))
    secret, published = await _data(api, _SECRET), await _data(api, _CONFIG_MAP)
    assert published["ca.crt"].count("BEGIN CERTIFICATE") == 2
    await asyncio.gather(*(keeper.look() for keeper in keepers))
    assert (await _data(api, _SECRET), await _data(api, _CONFIG_MAP)) == (secret, published)


async def test_a_bundle_that_somebody_has_spoiled_is_mended(api: kube.KubeClient, clock: _Clock) -> None:
    keeper = Keeper(api, _OPTIONS, clock=clock)
    await keeper.look()
    published = await _data(api, _CONFIG_MAP)
    await api.patch(_CONFIG_MAP, {"data": {"ca.crt": "x"}}, content_type=kube.Patch.MERGE)
    await keeper.look()
    assert await _data(api, _CONFIG_MAP) == published


async def test_labels_of_others_are_kept(api: kube.KubeClient, clock: _Clock) -> None:
    keeper = Keeper(api, _OPTIONS, clock=clock)
    await keeper.look()
    await api.patch(_SECRET, {"metadata": {"labels": {"a": "b"}}}, content_type=kube.Patch.MERGE)
    clock.now += 70 * DAY
    before = await _data(api, _SECRET)
    await keeper.look()
    after = await api.get(_SECRET)
    assert after["metadata"]["labels"] == {"a": "b"}
    assert after["data"]["tls.crt"] != before["tls.crt"]


async def test_without_the_api_server_it_says_so_and_serves_what_it_has(tmp_path: Path, clock: _Clock) -> None:
    async with standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server:
        deadlines = kube.Deadlines(connect=0.5, call=0.5)
        async with kube.connect(kubeconfig=server.kubeconfig, deadlines=deadlines) as client:
            await client.create(paths.collection("namespaces"), {"metadata": {"name": "kubemend"}})
            keeper = Keeper(client, _OPTIONS, clock=clock)
            await keeper.ready()
            await server.stop()
            with pytest.raises(errors.ApiUnavailableError):
                await keeper.look()
            keeper.credentials()


def test_there_are_no_credentials_before_the_first_certificate(clock: _Clock, tmp_path: Path) -> None:
    keeper = Keeper(kube.connect(kubeconfig=tmp_path / "none"), _OPTIONS, clock=clock)
    with pytest.raises(RuntimeError, match="no certificate yet"):
        keeper.credentials()


async def test_a_running_server_serves_the_new_certificate(api: kube.KubeClient, clock: _Clock) -> None:
    """The first is made so long ago that the CA changes now, by the machine's own clock; old connections live on."""
    clock.now -= 740 * DAY
    keeper = Keeper(api, _OPTIONS, clock=clock)
    await keeper.look()
    first = (await _data(api, _CONFIG_MAP))["ca.crt"]
    clock.now += 70 * DAY
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", {"Say": _ECHO}),))
    port = server.add_secure_port("127.0.0.1:0", keeper.credentials())
    await server.start()
    try:
        clock.now += 660 * DAY
        await keeper.look()  # the next CA is published
        clock.now += 10 * DAY
        await keeper.look()  # and used
        last = (await _data(api, _CONFIG_MAP))["ca.crt"]
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
