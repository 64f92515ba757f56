"""What became of rounds, told while some of it cannot be."""

from pathlib import Path

from common.kube import paths
from controller.restarts.events import EventTeller, ObjectRef
from tests import eventually
from tests.unit.reporters.running import connected, started


async def test_a_namespace_that_takes_no_events_keeps_no_other_waiting(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, api):
        await api.create(paths.collection("namespaces"), {"metadata": {"name": "going"}})
        server.handler.faults.fail_next(10_000, status=403, path="/namespaces/going/")
        teller = EventTeller(api=api, report=lambda _: None)
        for namespace in ("going", "default"):
            teller.tell(ObjectRef("v1", "Pod", namespace, "a", "uid"), reason="RoundDone", message="all run")

        async def told() -> bool:
            return bool((await api.list(paths.collection("events", namespace="default"))).items)

        async with started(teller):
            await eventually.true(told)
