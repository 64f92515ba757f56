"""Fault: the disk with the agent's state directory is full."""

import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Final

from bench.faults import disks, looking
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode.observer import Seen

PROMISE: Final = (
    "With a full disk faults are still detected and reported, restarts are postponed with `JournalUnavailable`, and "
    "they are carried out when there is space again."
)

_OFF_THE_BUS: Final = 79


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Fill the disk, inject faults, free space, and replace the agent by another one."""
    del scale  # cannot be shortened
    with disks.small(stage.directory / "disk") as disk:
        state = f"--state-dir={disk}"
        async with (
            stage.product() as product,
            stage.trainer("journalled") as trainer,
            stage.trainer("observed", annotations={}) as observed,
        ):
            agent = await product.start_agent(0, state, alone=True)
            filler = disks.fill(disk)
            reported.tries("the disk is filled to the last byte, then two GPUs fail")
            old = await trainer.fails()
            await trainer.until(_is_held, what="the condition that the restart is held")
            reported.keeps(Kind.UNASKED, "it was restarted without a journal", holds=await trainer.is_untouched())
            await observed.fails(_OFF_THE_BUS)
            await observed.until(lambda seen: seen.condition("DeviceFailure").get("status") == "True", what="Xid 79")
            reported.keeps(Kind.PROCESS, "the agent ended", holds=agent.child.returncode is None)
            reported.tries("room is made")
            filler.unlink()
            await trainer.verified(old)
            reported.keeps(Kind.RESTART, "it was not restarted in place", holds=await trainer.is_in_place())
            await looking.until(lambda: looking.works(agent.metrics_address, hub=False), what="the agent")
            reported.tries("the agent is followed by another one")
            await product.end_agent(0, signal.SIGTERM)
            reported.keeps(Kind.DATA, "the journal is corrupt", holds=_is_sound(disk / "state.db"))
            agent = await product.start_agent(0, state, alone=True)
            after = await looking.metrics(agent.metrics_address)
            reported.keeps(
                Kind.VERDICT,
                "the verdict of a full disk's time is forgotten",
                holds=after.get(f"kubemend_device_verdict{{{observed.uuid},Unhealthy}}") == 1.0,
            )
            reported.keeps(Kind.UNASKED, "a pod that did not opt in was restarted", holds=await observed.is_untouched())


def _is_held(seen: Seen) -> bool:
    return bool(seen.condition("InPlaceRestart").get("reason") == "JournalUnavailable")


def _is_sound(journal: Path) -> bool:
    with contextlib.closing(sqlite3.connect(journal)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))
