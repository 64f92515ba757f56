"""``python -m hack.devnode.kubelet``: run the kubelet stand-in as a process of its own."""

import asyncio
import contextlib
import signal
from pathlib import Path

import click

from common import logs
from common.kube import client
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.service import Kubelet
from hack.devnode.kubelet.settings import Settings

_PATH = click.Path(path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option("--kubeconfig", type=_PATH, required=True, help="How to reach the API server.")
@click.option("--cri", "cri_socket", required=True, help="The runtime's CRI socket (absolute path).")
@click.option("--root-dir", type=_PATH, required=True, help="Where pods' volumes and the checkpoint live.")
@click.option("--pod-logs-dir", type=_PATH, required=True, help="Where container logs go.")
@click.option("--node-name", required=True)
@click.option("--pod-resources", "pod_resources_socket", type=_PATH, required=True, help="Socket to serve.")
@click.option("--log-symlinks", type=_PATH, help="Directory for /var/log/containers-like links; none by default.")
@click.option("--control", "control_socket", type=_PATH, help="Control socket for tests; none by default.")
@click.option("--host-ip", default="127.0.0.1")
@click.option("--cgroup-root", default="", help="Parent of the kubepods cgroup.")
@click.option("--device-resource", default="nvidia.com/gpu")
@click.option("--device", "device_ids", multiple=True, help="A device id to give out; repeat it.")
@click.option("--claims-file", type=_PATH, help="JSON list of DRA claims for pod-resources.")
@click.option("--relist-period", type=float, default=1.0, help="Seconds.")
@click.option("--resync", type=float, default=60.0, help="Seconds, spread by x1 to x1.5 per pod.")
@click.option("--error-retry", type=float, default=10.0, help="Seconds.")
@click.option("--gc-period", type=float, default=60.0, help="Seconds.")
@click.option("--backoff-first", type=float, default=10.0, help="First CrashLoopBackOff in seconds.")
@click.option("--backoff-limit", type=float, default=300.0, help="Longest CrashLoopBackOff in seconds.")
@click.option("--log-format", type=click.Choice(["json", "console"]), default="json")
def main(*, log_format: logs.LogFormat, **values: object) -> None:
    """Run pods of one node on a CRI runtime by kubelet's rules, as far as kubemend's tests need them."""
    logs.configure(log_format=log_format)
    asyncio.run(_serve(Settings(**values)))  # type: ignore[arg-type]


async def _serve(settings: Settings) -> None:
    async with (
        client.connect(kubeconfig=settings.kubeconfig) as kube,
        CriRuntime(settings.cri_socket.removeprefix("unix://")) as runtime,
    ):
        work = asyncio.create_task(Kubelet(settings, kube=kube, runtime=runtime).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


if __name__ == "__main__":
    main()
