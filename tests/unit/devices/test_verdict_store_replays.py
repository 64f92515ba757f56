"""Verdicts do not depend on how findings are batched, nor on how often the agent dies in between."""

import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.model.devices import DeviceId, DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Verdict
from tests.environments.node import verdicts
from tests.fakes import outside

CATALOG = catalog_file.builtin()
INVENTORY = outside.Devices().inventory
KINDS = [
    (FindingKind.XID, "13"),
    (FindingKind.XID, "31"),
    (FindingKind.XID, "43"),
    (FindingKind.XID, "48"),
    (FindingKind.XID, "64"),
    (FindingKind.XID, "79"),
    (FindingKind.RECOVERY_ACTION, "0"),
    (FindingKind.RECOVERY_ACTION, "1"),
    (FindingKind.LINK_DOWN, ""),
    (FindingKind.THROTTLED, ""),
    (FindingKind.DEVICE_BACK, ""),
    (FindingKind.APP_GONE, ""),
    (FindingKind.CLEARED, ""),
    (FindingKind.FAULT_OVER, "LinkDown"),
    (FindingKind.FAULT_OVER, "Throttled"),
]


def finding(index: int, kind: FindingKind, code: str, device: str) -> Finding:
    return Finding(
        source=Source.KERNEL_LOG,
        kind=kind,
        code=code,
        device=DeviceLocator(uuid=DeviceId(device)),
        action=CATALOG.action(FaultKey(kind, code)),
        observed_at=float(index),
    )


FINDINGS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(["GPU-0", "GPU-1"]), st.sampled_from(["a", "b"])), max_size=14
)


async def folded(batches: Sequence[Sequence[tuple[Finding, str]]], *, directory: Path) -> list[Verdict]:
    """Fold each batch in an agent of its own, which the next one replaces."""
    for batch in (*batches, []):
        store = await Store.open(directory / "state.db")
        verdict_store = verdicts(store, catalog=CATALOG)
        await verdict_store.load()
        for item, pod in batch:
            verdict_store.apply(item, inventory=INVENTORY, pod=pod)
        await verdict_store.save()
        found = [verdict_store.verdict(device, inventory=INVENTORY) for device in ("GPU-0", "GPU-1")]
        await store.close()
    return found


@settings(max_examples=60, deadline=None)
@given(found=FINDINGS, cuts=st.lists(st.integers(0, 14), max_size=4))
def test_any_split_into_batches_and_agents_gives_same_verdicts(
    found: list[tuple[tuple[FindingKind, str], str, str]], cuts: list[int]
) -> None:
    items = [(finding(index, *kind, device), pod) for index, (kind, device, pod) in enumerate(found)]
    edges = [0, *sorted(min(cut, len(items)) for cut in cuts), len(items)]
    batches = [items[start:end] for start, end in itertools.pairwise(edges)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        whole = asyncio.run(folded([items], directory=Path(one)))
        assert asyncio.run(folded(batches, directory=Path(many))) == whole
