"""JobSets on a real API server. The test acts as Job controller, garbage collector and users."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from hack.devnode.apiproxy import ApiProxy
from kubemend.common import aio
from kubemend.common.components import ComponentStatus
from kubemend.common.kube import client, errors, paths, watch_protocol
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.spec.model import JobSet, Refusal, RoundView
from kubemend.controller.jobsets import events, views
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.queue import Intervals
from kubemend.controller.jobsets.running import JobSets
from tests import eventually
from tests.control_plane import DEADLINES
from tests.unit.jobsets import builders

HASTE: Final = Intervals(settle=0.005, pause=0.01)


class Client(client.KubeClient):
    """A client that counts its writes, and whose watches of some paths can be held back."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig=kubeconfig, deadlines=DEADLINES)
        self.calls: Counter[str] = Counter()
        self.late: dict[str, asyncio.Event] = {}

    def hold_back(self, path: str) -> asyncio.Event:
        """Hold back the watch of a path until the event is set."""
        self.late[path] = asyncio.Event()
        return self.late[path]

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[watch_protocol.WatchEvent, None]:
        events = super().watch(path, **options)
        async with contextlib.aclosing(events):
            async for event in events:
                if path in self.late:
                    await self.late[path].wait()
                yield event

    async def create(self, path: str, body: Json) -> Json:
        self.calls[f"create {path.rpartition('/')[2]}"] += 1
        return await super().create(path, body)

    async def update(self, path: str, body: Json, *, attempts: int = 4) -> Json:
        self.calls[f"update {path.rpartition('/')[2]}"] += 1
        return await super().update(path, body, attempts=attempts)

    async def patch(self, path: str, body: Any, *, content_type: client.Patch = client.Patch.STRATEGIC) -> Json:
        self.calls["patch"] += 1
        return await super().patch(path, body, content_type=content_type)

    async def delete(self, path: str, *, options: Json | None = None) -> Json:
        self.calls["delete"] += 1
        return await super().delete(path, options=options)


class Rounds:
    """Rounds, as the test sets them."""

    def __init__(self) -> None:
        self.all: tuple[RoundView, ...] = ()
        self.refused: Refusal | None = None

    def rounds(self, jobset: JobSet) -> tuple[RoundView, ...]:
        return self.all

    def refusal(self, jobset: JobSet) -> Refusal | None:
        return self.refused


class Leader:
    """One replica that runs JobSets."""

    def __init__(
        self,
        api: Client,
        *,
        rounds: Rounds | None = None,
        parallel: int = 50,
        name: str = "one",
        intervals: Intervals = HASTE,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.02, limit=0.2),
    ) -> None:
        self.api = api
        self.reports: list[ComponentStatus] = []
        self.rounds = rounds or Rounds()
        self.registry = CollectorRegistry()
        self.tainted: list[str] = []
        self.jobsets = JobSets(
            api=api,
            report=self.reports.append,
            rounds=self.rounds,
            metrics=JobSetMetrics(self.registry),
            instance=name,
            parallel=parallel,
            tainted=lambda: tuple(self.tainted),
            intervals=intervals,
            backoff=backoff,
        )

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[JobSets]:
        """Lead for the length of the block."""
        task = asyncio.create_task(self.jobsets.run(), name="jobsets")
        try:
            yield self.jobsets
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


class JobSetEnv:
    """A server, the test's own client, and manual controllers."""

    def __init__(self, server: ApiProxy, api: Client, *, namespace: str) -> None:
        self.server = server
        self.api = api
        self.namespace = namespace
        self.all_jobsets = paths.collection("jobsets", namespace=namespace, group=views.GROUP, version=views.VERSION)
        self.all_jobs = paths.collection("jobs", namespace=namespace, group="batch")
        self.all_pods = paths.collection("pods", namespace=namespace)
        self.all_events = paths.collection("events", namespace=namespace, group=events.GROUP)

    def of(self, plural: str) -> str:
        """Return the path of one of the namespace's core collections."""
        return paths.collection(plural, namespace=self.namespace)

    async def create(self, obj: Json) -> Json:
        return await self.api.create(self.all_jobsets, obj)

    async def jobset(self, name: str = "train") -> Json:
        return await self.api.get(f"{self.all_jobsets}/{name}")

    async def status(self, name: str = "train") -> Json:
        return (await self.jobset(name)).get("status") or {}

    async def has_status(self, field: str, name: str = "train") -> bool:
        return field in await self.status(name)

    async def jobs(self) -> dict[str, Json]:
        """Return all Jobs by name."""
        found = await self.api.list(self.all_jobs)
        return {each["metadata"]["name"]: each for each in found.items}

    async def has_condition(self, kind: str, *, reason: str = "", status: str = "True", name: str = "train") -> bool:
        conditions = (await self.status(name)).get("conditions") or ()
        return any(
            each["type"] == kind and each["status"] == status and reason in ("", each["reason"]) for each in conditions
        )

    async def until_condition(self, kind: str, *, reason: str = "", status: str = "True", name: str = "train") -> None:
        await eventually.true(lambda: self.has_condition(kind, reason=reason, status=status, name=name))

    async def until_jobs(self, count: int) -> dict[str, Json]:
        async def there() -> bool:
            return len(await self.jobs()) == count

        await eventually.true(there)
        return await self.jobs()

    async def suspend(self, *, suspend: bool, name: str = "train") -> None:
        await self.api.patch(
            f"{self.all_jobsets}/{name}", {"spec": {"suspend": suspend}}, content_type=client.Patch.MERGE
        )

    async def job_status(self, name: str, **status: Any) -> None:
        """Have the Job controller write a Job's status."""
        await self.api.patch_status(f"{self.all_jobs}/{name}", {"status": status}, content_type=client.Patch.MERGE)

    async def runs(self, name: str) -> None:
        """Have a Job's pods run and be ready."""
        await self.job_status(name, active=1, ready=1, **await self._begun(name))

    async def ends(self, name: str, *, failed: bool, reason: str = "", message: str = "") -> None:
        """End a Job: first the fields that the API server requires, like the Job controller."""
        kinds = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
        begun = await self._begun(name)  # before the end is written: the second may change in between
        detail = {
            "reason": reason or ("BackoffLimitExceeded" if failed else "CompletionsReached"),
            "message": message,
            "lastTransitionTime": builders.now(),
            "lastProbeTime": builders.now(),
        }
        conditions = [{"type": kind, "status": "True", **detail} for kind in kinds]
        count: Json = {"failed": 1} if failed else {"succeeded": 1, "completionTime": builders.now()}
        await self.job_status(name, active=0, ready=0, conditions=conditions, **begun, **count)

    async def _begun(self, name: str) -> Json:
        """Return when a Job began: its recorded time, or now. It cannot be changed."""
        status = (await self.api.get(f"{self.all_jobs}/{name}")).get("status") or {}
        return {"startTime": status.get("startTime") or builders.now()}

    async def collect_garbage(self) -> None:
        """Remove objects deleted in the foreground, as if their dependents were gone."""
        for name, job in (await self.jobs()).items():
            if "deletionTimestamp" in job["metadata"]:
                with contextlib.suppress(errors.NotFoundError):
                    gone = {"metadata": {"finalizers": None}}
                    await self.api.patch(f"{self.all_jobs}/{name}", gone, content_type=client.Patch.MERGE)

    async def collecting(self) -> None:
        """Collect indefinitely."""
        async for _ in aio.ticks(period=0.1):
            await self.collect_garbage()

    async def events(self) -> list[tuple[str, str]]:
        """Return reasons and notes of all Events, in no order."""
        found = await self.api.list(self.all_events)
        return [(each["reason"], each["note"]) for each in found.items]

    async def until_event(self, reason: str) -> None:
        async def is_recorded() -> bool:
            return any(each == reason for each, _ in await self.events())

        await eventually.true(is_recorded)


@contextlib.asynccontextmanager
async def background(work: Callable[[], Any]) -> AsyncIterator[None]:
    """Run something for the length of the block."""
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
