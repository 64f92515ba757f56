"""What is kept of JobSets and of pods that are to be placed where there is too much of them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from common.kube import client, watching
from controller.jobset import model
from controller.jobset.placement import marks, reading
from controller.jobset.placement.model import Needs, Pod
from controller.jobsets import seen, views
from controller.jobsets.seen import NotUnderstood, Others
from tests import eventually
from tests.unit.jobset import worlds
from tests.unit.reporters.running import started


def test_a_jobset_that_is_too_much_is_told_as_one_that_cannot_be_read() -> None:
    jobset = worlds.jobset()
    found = seen.bare(jobset)
    assert isinstance(found, NotUnderstood)
    assert (found.namespace, found.name, found.uid) == (jobset.namespace, jobset.name, jobset.uid)
    assert "take more than 64 MiB" in found.why
    assert seen.bare(found) is found


def test_of_others_jobsets_there_is_never_too_much() -> None:
    found = seen.jobset({"metadata": {"resourceVersion": "7"}, "spec": {"managedBy": f"not-{model.MANAGED_BY}"}})
    assert isinstance(found, Others)
    assert seen.bare(found) is found


def test_a_pod_that_asks_for_too_much_goes_on_waiting_and_holds_what_it_holds() -> None:
    selector = (("rack", "r1"), *((f"label-{number}", "x") for number in range(10_000)))
    waiting = Pod("team", "a", "u1", "job", topology="rack", gates=(marks.GATE,), needs=Needs(selector=selector))
    assert marks.waits(waiting)
    found = reading.bare(waiting)
    assert not marks.waits(found)
    assert (found.uid, found.job, found.needs) == ("u1", "job", Needs(selector=(("rack", "r1"),)))


class Listening(client.KubeClient):
    """A server of empty collections that notes of which metadata is enough."""

    def __init__(self) -> None:
        super().__init__(kubeconfig=None, deadlines=client.Deadlines())
        self.asked: dict[tuple[str, str], bool] = {}

    async def list(self, path: str, **_: Any) -> client.Listing:
        return client.Listing([], "1")

    async def pages(self, path: str, **options: Any) -> AsyncGenerator[client.Listing, None]:
        self.asked["list", path] = options["metadata_only"]
        yield client.Listing([], "1")

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[watching.WatchEvent, None]:
        self.asked["watch", path] = options["metadata_only"]
        await asyncio.Event().wait()
        yield watching.WatchEvent(watching.EventType.BOOKMARK, {})


async def test_of_services_and_claims_nothing_but_metadata_is_asked_for() -> None:
    def nobody(*_: Any) -> None:
        """Hears what is told."""

    api = Listening()
    kept = views.Views(api=api, report=nobody, changed=nobody, told=nobody)
    async with started(kept):
        await eventually.true(lambda: len(api.asked) == 8)
    by_path = {views.JOBSETS: False, views.JOBS: False, views.SERVICES: True, views.CLAIMS: True}
    assert api.asked == {(verb, path): only for path, only in by_path.items() for verb in ("list", "watch")}
