"""The state file of an agent of each release, as SQL: recorded once, never changed, read by every later release.

``python -m tests.contract.journal.recording RELEASE`` records today's; run it when its format was changed.
"""

import asyncio
import contextlib
import dataclasses
import sqlite3
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model import rounds
from kubemend.agent.model.workloads import ContainerId, ContainerRole
from kubemend.agent.restart import intents
from kubemend.agent.restart.counts import Begun
from kubemend.common.coordination import OrderKind, StepPhase
from tests.unit.restart import builders

DIRECTORY: Final = Path(__file__).with_name("recorded")
BEGUN: Final = Begun(builders.POD.uid, frozenset({"trainer"}), at=1000.0, fault_at=999.5, device="GPU-0")
SWAP: Final = builders.intent(id="swap", created_at=1.0)
RERUN: Final = intents.PodIntent(
    id="rerun",
    target=SWAP.target,
    sandbox_id=SWAP.sandbox_id,
    reason="Xid31",
    created_at=2.0,
    grace_seconds=1.5,
    strategy=intents.Strategy.RERUN,
    plan=(
        intents.Planned("trainer", ContainerRole.MAIN, old=(ContainerId("c0"),), old_attempt=3, has_startup_probe=True),
    ),
    trigger=ContainerId("c0"),
)
RECORD: Final = rounds.Record(
    order=rounds.Order(
        round="team/r1",
        attempt=2,
        pod=builders.POD.uid,
        kind=OrderKind.RESTART,
        cause_code="Exit1",
        cause_message="it ended",
        hold_seconds=30.0,
        containers=frozenset({"trainer"}),
        strategy="swap",
        grace_seconds=None,
    ),
    pod=builders.POD,
    step_result=rounds.StepResult(
        round="team/r1",
        pod=builders.POD,
        phase=StepPhase.STOPPED,
        reason="Killed",
        detail="at once",
        seconds=MappingProxyType({"stop": 0.5}),
        unheld_seconds=0.25,
        attempt=2,
    ),
    boot="boot-1",
    renewed_at=10.0,
    written_at=1001.0,
    names=frozenset({"trainer"}),
    released=False,
)
EPOCH: Final = 8
DOCUMENT: Final = ("cursor", "boot-1,42")


async def _leave(path: Path) -> None:
    store = await Store.open(path)
    await store.begin(SWAP, counted=BEGUN)
    await store.begin(RERUN, counted=dataclasses.replace(BEGUN, at=1001.0), record=RECORD)
    await store.obey(EPOCH)
    await store.save(*DOCUMENT)
    await store.close()


@click.command()
@click.argument("release")
def _record(release: str) -> None:
    """Record what this release writes, for the tests of later ones."""
    target = DIRECTORY / f"{release}.sql"
    if target.exists():
        raise click.ClickException(f"{target} exists: the state file of a release is never changed")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "state.db"
        asyncio.run(_leave(path))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            lines = [*connection.iterdump(), f"PRAGMA user_version = {version};"]
    DIRECTORY.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    _record()
