"""Provide the cluster's network add-ons, as far as kubemend's own pods need them: two addresses of Services.

A dev cluster has neither kube-proxy nor CoreDNS. ``on`` runs a process that listens on the address of the Service
``kubernetes`` and passes connections on to kube-apiserver, and that answers DNS queries for headless Services from the
API server's EndpointSlices of that moment.
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, cast

import click
import dnslib

from hack.devnode import apiserver, layout, network, processes
from kubemend.common.kube import client, errors, paths

DOMAIN: Final = "cluster.local"

_API_PORT: Final = 443
_DNS_PORT: Final = 53
_STOP_SECONDS: Final = 5.0
_START_SECONDS: Final = 60.0
_CHUNK: Final = 64 * 1024
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SERVICE: Final = re.compile(rf"(?P<name>{_LABEL})\.(?P<namespace>{_LABEL})\.svc\.cluster\.local\.?")
_READY: Final = "ready"


@contextlib.asynccontextmanager
async def on(where: layout.NodeLayout, server: apiserver.KubeApiServer) -> AsyncIterator[None]:
    """Run the process for the length of the block; ``where`` is the node whose bridge gets the addresses.

    Raises network.NetworkError or processes.ProcessError.
    """
    for address in (where.api_service, where.dns_service):
        await asyncio.to_thread(network.add_address, where, address)
    flags = [f"--kubeconfig={server.kubeconfig}", f"--api={where.api_service}", f"--dns={where.dns_service}"]
    log = where.log_file("addons")
    child = processes.Child.start(
        [sys.executable, "-m", "tests.devnode.addons", *flags, f"--server-port={server.port}"],
        name="network add-ons",
        log=log,
        pid_file=where.pid_file("addons"),
        environment=processes.source_environment(),
    )
    try:
        await _listening(child, where, log)
        yield
    finally:
        await child.stop(grace=_STOP_SECONDS)


async def _listening(child: processes.Child, where: layout.NodeLayout, log: Path) -> None:
    async with asyncio.timeout(_START_SECONDS):
        while child.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(where.api_service, _API_PORT)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.05)
    raise processes.ProcessError(f"{child.name} ended ({child.returncode}); see {log}")


class _Dns(asyncio.DatagramProtocol):
    """Answer each query in a task of its own."""

    def __init__(self, api: client.KubeClient, tasks: asyncio.TaskGroup) -> None:
        self._api = api
        self._tasks = tasks
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # Python 3.11 has no common class

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            query = dnslib.DNSRecord.parse(data)
        except dnslib.DNSError:
            return
        self._tasks.create_task(self._answer(query, addr), name="dns")

    async def _answer(self, query: dnslib.DNSRecord, to: tuple[str, int]) -> None:
        reply = query.reply()
        found = _SERVICE.fullmatch(str(query.q.qname).lower())
        try:
            addresses = await addresses_of(self._api, found["name"], found["namespace"]) if found else []
        except errors.KubeError as error:
            click.echo(error)
            reply.header.rcode = dnslib.RCODE.SERVFAIL
        else:
            if not addresses:
                reply.header.rcode = dnslib.RCODE.NXDOMAIN
            if query.q.qtype == dnslib.QTYPE.A:
                for address in addresses:
                    reply.add_answer(dnslib.RR(query.q.qname, dnslib.QTYPE.A, rdata=dnslib.A(address), ttl=1))
        if self._transport is not None:
            self._transport.sendto(reply.pack(), to)


async def addresses_of(api: client.KubeClient, service: str, namespace: str) -> list[str]:
    """Return the addresses of a headless Service's ready endpoints, as CoreDNS does."""
    slices = paths.collection("endpointslices", namespace=namespace, group="discovery.k8s.io")
    found = await api.list(slices, params={"labelSelector": f"kubernetes.io/service-name={service}"})
    endpoints = [endpoint for each in found.items for endpoint in each.get("endpoints") or ()]
    return [
        address for each in endpoints if each.get("conditions", {}).get(_READY, True) for address in each["addresses"]
    ]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, port: int) -> None:
    """Relay one connection to kube-apiserver, until either side ends it."""
    try:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    ways = ((reader, inner_writer), (inner_reader, writer))
    copies = [asyncio.ensure_future(_copy(source, target)) for source, target in ways]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for each in (inner_writer, writer):
            each.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()


async def _serve(*, kubeconfig: Path, api: str, dns: str, server_port: int) -> None:
    loop = asyncio.get_running_loop()
    async with client.connect(kubeconfig=kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        await loop.create_datagram_endpoint(lambda: _Dns(kube, tasks), local_addr=(dns, _DNS_PORT))
        server = await asyncio.start_server(
            lambda reader, writer: _pass_on(reader, writer, port=server_port), api, _API_PORT
        )
        async with server:
            await server.serve_forever()


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
@click.option("--api", required=True, help="Address of the Service kubernetes.")
@click.option("--dns", required=True, help="Address of the cluster's DNS.")
@click.option("--server-port", type=int, required=True, help="kube-apiserver's port on loopback.")
def main(*, kubeconfig: Path, api: str, dns: str, server_port: int) -> None:
    """Serve the addresses of Services until SIGTERM."""
    asyncio.run(_serve(kubeconfig=kubeconfig, api=api, dns=dns, server_port=server_port))


if __name__ == "__main__":
    main()
