"""``python -m hack.devnode.jobcontroller --kubeconfig PATH``: the stand-ins as one process, until SIGTERM or SIGINT."""

import argparse
import asyncio
from pathlib import Path

from common import aio, logs, process
from common.kube import client
from hack.devnode.jobcontroller.garbage import Collector
from hack.devnode.jobcontroller.jobs import JobController
from hack.devnode.jobcontroller.scheduler import Scheduler
from hack.devnode.jobcontroller.sync import Backoff

PARTS = ("jobs", "garbage", "scheduler")


async def work(*, kubeconfig: Path, parts: list[str], backoff: Backoff) -> None:
    """Run the parts until a signal asks to stop."""
    stop = process.stop_signal()
    async with client.connect(kubeconfig=kubeconfig) as api:
        made: dict[str, JobController | Collector | Scheduler] = {
            "jobs": JobController(api, backoff=backoff),
            "garbage": Collector(api),
            "scheduler": Scheduler(api),
        }
        try:
            async with asyncio.TaskGroup() as group:
                for name in parts:
                    aio.spawn_eternal(group, made[name].run(), name=name)
                group.create_task(_stop(stop), name="stop")
        except* process.Stop:
            pass


async def _stop(stop: asyncio.Event) -> None:
    await stop.wait()
    raise process.Stop


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="hack.devnode.jobcontroller", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="how to reach the API as administrator")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument("--backoff", type=float, default=10.0, help="seconds before a failed pod is made anew, doubled")
    args = parser.parse_args()
    logs.configure(level="info", log_format="json")
    asyncio.run(work(kubeconfig=args.kubeconfig, parts=args.part or [*PARTS], backoff=Backoff(first=args.backoff)))


if __name__ == "__main__":
    main()
