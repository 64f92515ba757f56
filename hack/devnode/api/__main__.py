"""``python -m hack.devnode.api --port 6443 --kubeconfig PATH``: the stand-in as a process, until SIGTERM or SIGINT."""

import argparse
import asyncio
import signal
from pathlib import Path

from hack.devnode.api.standin import StandIn


async def serve(*, port: int, kubeconfig: Path) -> None:
    """Serve until a signal asks to stop. The kubeconfig is written once requests are answered."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with StandIn(kubeconfig=kubeconfig, port=port) as server:
        print(f"serving on 127.0.0.1:{server.port}", flush=True)
        await stop.wait()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="hack.devnode.api", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="loopback port (default: a free one)")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="where to write how clients get in")
    args = parser.parse_args()
    asyncio.run(serve(port=args.port, kubeconfig=args.kubeconfig))


if __name__ == "__main__":
    main()
