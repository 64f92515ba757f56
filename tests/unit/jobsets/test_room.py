"""What is kept of oversized JobSets and of pods to place."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from kubemend.common.kube import client, watch_protocol
from kubemend.controller.jobset.placement import marks, reading
from kubemend.controller.jobset.placement.model import Needs, Pod
from kubemend.controller.jobset.spec import model
from kubemend.controller.jobsets import invalid_objects, views
from kubemend.controller.jobsets.invalid_objects import InvalidObject, Others
from tests import eventually
from tests.unit.jobset import worlds
from tests.unit.reporters.running import started


def test_oversized_jobset_is_reported_as_invalid() -> None:
    jobset = worlds.jobset()
    found = invalid_objects.bare(jobset)
    assert isinstance(found, InvalidObject)
    assert (found.namespace, found.name, found.uid) == (jobset.namespace, jobset.name, jobset.uid)
    assert "take more than 64 MiB" in found.why
    assert invalid_objects.bare(found) is found


def test_foreign_jobsets_are_never_too_large() -> None:
    found = invalid_objects.jobset(
        {"metadata": {"resourceVersion": "7"}, "spec": {"managedBy": f"not-{model.MANAGED_BY}"}}
    )
    assert isinstance(found, Others)
    assert invalid_objects.bare(found) is found


def test_oversized_pod_keeps_waiting_and_occupying() -> None:
    selector = (("rack", "r1"), *((f"label-{number}", "x") for number in range(10_000)))
    waiting = Pod("team", "a", "u1", "job", topology="rack", gates=(marks.GATE,), needs=Needs(selector=selector))
    assert marks.waits(waiting)
    found = reading.bare(waiting)
    assert not marks.waits(found)
    assert (found.uid, found.job, found.needs) == ("u1", "job", Needs(selector=(("rack", "r1"),)))


class Listening(client.KubeClient):
    """A server of empty collections that records of which only metadata is requested."""

    def __init__(self) -> None:
        super().__init__(kubeconfig=None, deadlines=client.Deadlines())
        self.asked: dict[tuple[str, str], bool] = {}

    async def list(self, path: str, **_: Any) -> client.Listing:
        return client.Listing([], "1")

    async def pages(self, path: str, **options: Any) -> AsyncGenerator[client.Listing, None]:
        self.asked["list", path] = options["metadata_only"]
        yield client.Listing([], "1")

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[watch_protocol.WatchEvent, None]:
        self.asked["watch", path] = options["metadata_only"]
        await asyncio.Event().wait()
        yield watch_protocol.WatchEvent(watch_protocol.EventType.BOOKMARK, {})


async def test_only_metadata_of_services_and_claims_is_read() -> None:
    def ignore(*_: Any) -> None:
        """Ignore everything."""

    api = Listening()
    kept = views.Views(api=api, report=ignore, changed=ignore, jobset_changed=ignore)
    async with started(kept):
        await eventually.true(lambda: len(api.asked) == 8)
    by_path = {views.JOBSETS: False, views.JOBS: False, views.SERVICES: True, views.CLAIMS: True}
    assert api.asked == {(verb, path): only for path, only in by_path.items() for verb in ("list", "watch")}
