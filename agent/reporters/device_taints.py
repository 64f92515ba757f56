"""Keep new ResourceClaims off unhealthy devices by one DeviceTaintRule each, if the cluster has them.

Desired state: the rules in the API are compared with the verdicts whenever those change, and every ``resync`` seconds
while there is a rule or an unhealthy device. Rules of a previous agent are found by their label.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.reporters import taint_rules
from kubemend.agent.reporters.taint_rules import Rule
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths

log = structlog.get_logger(__name__)

GROUP = "resource.k8s.io"

_NOT_SERVED = ComponentStatus(
    ComponentState.IDLE,
    f"the API server serves no DeviceTaintRules ({GROUP})",
    "to use them, enable their API version and the feature gate DRADeviceTaintRules in the control plane",
)
_NOT_STABLE = ComponentStatus(
    ComponentState.IDLE,
    f"the API server serves no DeviceTaintRules in a stable version of {GROUP}",
    "to use those of an alpha or beta version, set --device-taints",
)
_STABLE = re.compile(r"v\d+")


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals in seconds.

    ``resync`` applies while a rule or an unhealthy device exists, ``served`` between checks for an API that is not
    served, or not permitted. ``spacing`` is the least between two comparisons: a program can change the health of its
    device any number of times.
    """

    resync: float = 60.0
    served: float = 600.0
    spacing: float = 1.0


@dataclass(frozen=True, slots=True)
class _Served:
    """The API paths of the two kinds, in the versions that the server prefers, which may differ."""

    rules: str
    slices: str
    api_version: str


class DeviceTaintReporter:
    """``set`` stores the devices' verdicts, ``run`` writes the rules. Before the first ``set`` nothing is done."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[ComponentStatus], None],
        intervals: Intervals | None = None,
        backoff: aio.Backoff | None = None,
        if_stable: bool = False,
    ) -> None:
        """Create it; ``if_stable``: use rules only in a stable version of the API, and only if they are permitted.

        Otherwise the rules are wanted, and a missing permission is a problem.
        """
        self._api = api
        self._node = node_name
        self._report = report
        self._if_stable = if_stable
        self._intervals = intervals if intervals is not None else Intervals()
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.5, limit=30.0)
        self._verdicts: tuple[Verdict, ...] | None = None
        self._served: _Served | None = None
        self._has_rules: bool | None = None  # not read yet
        self._news = asyncio.Event()

    def set(self, verdicts: Sequence[Verdict]) -> None:
        """Set the verdicts of all devices of the node. Does not block; a change that affects no rule costs nothing."""
        before, self._verdicts = self._verdicts, tuple(verdicts)
        if before is None or _matters(before) != _matters(verdicts):
            self._news.set()

    async def run(self) -> None:
        """Converge indefinitely."""
        self._report(ComponentStatus(ComponentState.IDLE, "no verdicts yet"))
        await self._news.wait()
        while True:
            self._news.clear()
            try:
                with contained.within(contained.Part.TAINT, self._node, passing=(errors.KubeError,)) as work:
                    if self._served is None:
                        self._served = await self._discover()
                    if self._served is not None:
                        await self._converge(self._served)
            except errors.KubeError as error:
                if isinstance(error, errors.NotFoundError):
                    self._served = None  # the API may have been switched off
                if self._if_stable and isinstance(error, errors.ForbiddenError) and not error.is_by_admission:
                    self._report(ComponentStatus(ComponentState.IDLE, error.what, error.hint))
                    await asyncio.sleep(self._intervals.served)
                else:
                    self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))
                    await self._backoff.wait()
                continue
            if work.error is not None:
                self._report(ComponentStatus(ComponentState.DEGRADED, contained.describe(work.error)))
                await self._backoff.wait()
                continue
            self._backoff.reset()
            unserved = _NOT_STABLE if self._if_stable else _NOT_SERVED
            self._report(unserved if self._served is None else ComponentStatus(ComponentState.READY))
            await self._until_due()

    async def _until_due(self) -> None:
        if self._served is None:
            await asyncio.sleep(self._intervals.served)  # no verdict changes what the server serves
            return
        await asyncio.sleep(self._intervals.spacing)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._intervals.resync if self._has_rules or self._unhealthy else None):
                await self._news.wait()

    @property
    def _unhealthy(self) -> bool:
        return any(verdict.health is Health.UNHEALTHY for verdict in self._verdicts or ())

    async def _discover(self) -> _Served | None:
        """Return the API paths, or None if the API is not served."""
        try:
            group = await self._api.get(f"/apis/{GROUP}")
            by_version = {
                item["version"]: await self._resources(item["version"]) for item in group.get("versions") or ()
            }
        except errors.NotFoundError:
            return None
        usable = (version for version in by_version if not self._if_stable or _STABLE.fullmatch(version))
        rules = next((version for version in usable if "devicetaintrules" in by_version[version]), None)
        slices = next((version for version, found in by_version.items() if "resourceslices" in found), None)
        if rules is None or slices is None:
            return None
        return _Served(
            rules=paths.collection("devicetaintrules", group=GROUP, version=rules),
            slices=paths.collection("resourceslices", group=GROUP, version=slices),
            api_version=f"{GROUP}/{rules}",
        )

    async def _resources(self, version: str) -> frozenset[str]:
        found = await self._api.get(f"/apis/{GROUP}/{version}")
        return frozenset(item["name"] for item in found.get("resources") or ())

    async def _converge(self, served: _Served) -> None:
        verdicts = self._verdicts or ()
        if self._has_rules is False and not self._unhealthy:
            return
        rules = await self._rules(served)
        self._has_rules = bool(rules) or self._unhealthy  # one may be created although the answer is lost
        if not self._has_rules:
            return
        slices = await self._api.list(served.slices, params={"fieldSelector": f"spec.nodeName={self._node}"})
        plan = taint_rules.plan(
            verdicts=verdicts, published=taint_rules.published(slices.items), rules=rules, node=self._node
        )
        await self._carry_out(plan, served)
        self._has_rules = len(rules) + len(plan.create) > len(plan.delete)

    async def _rules(self, served: _Served) -> dict[str, Rule]:
        listed = await self._api.list(served.rules, params={"labelSelector": taint_rules.selector(self._node)})
        found = {}
        for item in listed.items:
            try:
                found[item["metadata"]["name"]] = taint_rules.of_object(item)
            except KeyError:
                log.warning("device_taint.foreign", rule=item["metadata"]["name"])
        return found

    async def _carry_out(self, plan: taint_rules.Plan, served: _Served) -> None:
        """Carry out the plan. A rule that the API server refuses stops no other one: its error follows them."""
        refused: list[errors.KubeError] = []
        for key in plan.delete:
            with _collected(refused):
                with contextlib.suppress(errors.NotFoundError):
                    await self._api.delete(f"{served.rules}/{key}")
                log.info("device_taint.removed", rule=key)
        for key, rule in plan.create.items():
            body = taint_rules.rule_object(rule, node=self._node, node_uid=await self._uid())
            with _collected(refused):
                with contextlib.suppress(errors.ConflictError):  # it exists: created before, and the answer was lost
                    await self._api.create(served.rules, {"apiVersion": served.api_version, **body})
                log.info("device_taint.added", rule=key, device=rule.known_as, reason=rule.reason)
        for key, rule in plan.change.items():
            path, change = f"{served.rules}/{key}", taint_rules.change(rule)
            with _collected(refused):
                await self._api.patch(path, change, content_type=client.Patch.MERGE)
                log.info("device_taint.changed", rule=key, device=rule.known_as, reason=rule.reason)
        if refused:
            raise refused[0]

    async def _uid(self) -> str:
        """Return the UID of the node's object, which may be another one than before."""
        return str((await self._api.get(f"{paths.NODES}/{self._node}"))["metadata"]["uid"])


@contextlib.contextmanager
def _collected(refused: list[errors.KubeError]) -> Iterator[None]:
    try:
        yield
    except (errors.ForbiddenError, errors.InvalidError) as error:
        refused.append(error)


def _matters(verdicts: Sequence[Verdict]) -> set[tuple[str, Health, str]]:
    """Return what rules depend on: whether each device is unhealthy, and why, unknown, or usable."""
    usable = (Health.HEALTHY, Health.DEGRADED)
    return {
        (
            verdict.device,
            Health.HEALTHY if verdict.health in usable else verdict.health,
            verdict.reason if verdict.health is Health.UNHEALTHY else "",
        )
        for verdict in verdicts
    }
