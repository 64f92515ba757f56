"""Publish the warm spares of pods' launchers as the pod condition ``WarmSpare``.

A change of a spare's state is published at once. Each pod has an allowance of writes, because a program in place of the
launcher could invent changes without end: beyond it the newest state is published when the allowance permits. Memory is
published with the state, and never alone. A pod whose containers have no launcher is written to only if it has the
condition, and a pod that ends only so that its condition does not stay True.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid, PodView
from kubemend.agent.reporters.allowances import Allowances
from kubemend.agent.restart import spares
from kubemend.agent.restart.process import Launcher, LauncherUnavailable
from kubemend.common import contained

BURST: Final = 10
"""Writes for one pod at once; a restart takes three."""
REFILL: Final = 30.0
"""Seconds until one more."""
SILENCE: Final = 5.0
"""Seconds before it is published that a launcher does not answer: one that has just started does not listen yet, and
while a container is replaced nothing should wake kubelet.
"""


@dataclass(slots=True)
class _Pod:
    """One pod's launchers by container. ``published`` is the last condition, without memory."""

    ref: PodRef
    launchers: dict[str, Launcher | LauncherUnavailable] = field(default_factory=dict)
    published: Condition | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def shows_true(self) -> bool:
        """Return whether its condition is True."""
        return self.published is not None and self.published.status is ConditionStatus.TRUE


class SpareConditions:
    """Decides when a pod's condition is published. Memory is bounded by the launchers that are followed."""

    def __init__(
        self, *, pods: Callable[[], Mapping[PodUid, PodView]], publish: Callable[[PodRef, Condition], None]
    ) -> None:
        """``pods`` are the node's pods; ``publish`` sets a pod's desired condition."""
        self._views = pods
        self._publish = publish
        self._pods: dict[PodUid, _Pod] = {}
        self._allowances = Allowances(burst=BURST, refill=REFILL)

    def adopt(self) -> None:
        """Take over the conditions of a previous agent. Call it when the launchers that run are followed.

        Those that do not show are not followed any more: the condition becomes Unknown.
        """
        now = asyncio.get_running_loop().time()
        for uid, view in self._views().items():
            found = next((each for each in view.conditions if each.type == conditions.WARM_SPARE), None)
            if found is not None and uid not in self._pods:
                pod = self._pods[uid] = _Pod(view.ref, published=found)
                self._at(pod, now + SILENCE, now=now)

    def show(self, container: ContainerRef, launcher: Launcher | LauncherUnavailable | None) -> None:
        """Accept the state of a container's launcher; None: the container is no longer followed. Does not block."""
        uid = container.pod.uid
        if launcher is not None:
            self._pods.setdefault(uid, _Pod(container.pod)).launchers[container.name] = launcher
        elif uid not in self._pods or self._pods[uid].launchers.pop(container.name, None) is None:
            return
        now = asyncio.get_running_loop().time()
        due = max(now if isinstance(launcher, Launcher) else now + SILENCE, self._allowances.next_at(uid))
        self._at(self._pods[uid], due, now=now)

    def _at(self, pod: _Pod, due: float, *, now: float) -> None:
        if pod.timer is not None:
            due = min(due, pod.timer.when())  # further changes do not delay a write that is due
            pod.timer.cancel()
            pod.timer = None
        if due <= now:
            self._write(pod)
        else:
            pod.timer = asyncio.get_running_loop().call_at(due, self._write, pod)

    def _write(self, pod: _Pod) -> None:
        pod.timer = None
        uid = pod.ref.uid
        with contained.within(contained.Part.CONDITION, pod.ref):
            view = self._views().get(uid)
            if view is None:
                del self._pods[uid]
                return
            ends = view.deleting or view.is_over
            state = spares.condition({name: spares.without_memory(each) for name, each in pod.launchers.items()})
            if state != pod.published and (not ends or pod.shows_true):
                pod.published = state
                self._allowances.spend(uid, now=asyncio.get_running_loop().time())
                self._publish(pod.ref, spares.condition(pod.launchers))
            if not pod.launchers:
                del self._pods[uid]
