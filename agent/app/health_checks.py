"""Answer pods' questions about their devices' health (``--health-check-socket``).

The modules of the socket are loaded only if it is set.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from kubemend.agent import ports
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices import health_answer
from kubemend.agent.devices.condition_publisher import PodVerdicts
from kubemend.agent.devices.health_answer import Answer, Undetermined
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.workloads import Allocations, ContainerId, PodRef
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.settings import Settings
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import aio
from kubemend.common.components import ComponentRegistry

if TYPE_CHECKING:
    from kubemend.agent.app.health_check_socket import Result

_MAX_AGE: Final = 1.0
_PRIVATE: Final = "health-checks"
"""Directory in the state directory for gRPC's own socket."""

VerdictsOf = Callable[[PodRef, Allocations], PodVerdicts]


def tasks(
    settings: Settings,
    *,
    parts: ComponentRegistry,
    metrics: Metrics,
    processes: ProcFs,
    access: aio.Promise[RuntimeAccess],
    holders: ports.Holders,
    verdicts_of: VerdictsOf,
) -> dict[str, Coroutine[Any, Any, None]]:
    """Return the task that answers indefinitely, by its name; none if no socket is set."""
    if settings.health_check_socket is None:
        return {}
    from kubemend.agent.app.health_check_socket import HealthCheckSocket

    def counted(result: "Result") -> None:
        metrics.health_checks.labels(result.value).inc()

    made = HealthCheckSocket(
        path=settings.health_check_socket,
        private=settings.state_dir / _PRIVATE,
        processes=processes,
        answer=HealthChecks(access=access, holders=holders, verdicts_of=verdicts_of).of,
        report=parts.reporter("health-checks"),
        counted=counted,
    )
    return {"health-checks": made.run()}


class HealthChecks:
    """Answer for the pod of a container, from the verdicts that its conditions have."""

    def __init__(
        self,
        *,
        access: aio.Promise[RuntimeAccess],
        holders: ports.Holders,
        verdicts_of: VerdictsOf,
    ) -> None:
        self._access = access
        self._holders = holders
        self._verdicts_of = verdicts_of

    async def of(self, container: ContainerId) -> Answer | Undetermined:
        """Answer for the pod of this container, about all devices of the pod and no others."""
        if (access := self._access.value) is None:
            return Undetermined("the agent has not found the container runtime yet")
        known = access.events.containers()
        pod = next((view.ref.pod for view in known if view.id == container), None)
        if pod is None:
            return Undetermined("the container runtime does not list the caller's container")
        allocations = await self._holders.current(max_age=_MAX_AGE)
        if not allocations.known:
            return Undetermined("kubelet did not return device allocations")
        held = [item for item in allocations.items if (item.namespace, item.pod_name) == (pod.namespace, pod.name)]
        verdicts = self._verdicts_of(pod, allocations)
        return health_answer.of(
            verdicts.own,
            near=verdicts.near,
            all_known=not any(map(convert.hides_gpu, held)),
            returning=verdicts.returning,
        )
