"""What device plugins and DRA drivers say of the devices that containers hold (KEP-4680). Pure.

Kubelet shows it as ``containerStatuses[].allocatedResourcesStatus[]``. It says that something is wrong, not what: one
voice among others, and an old one at times (kubelet does not ask again; a status is not kept up after the pod's end).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from agent.model.workloads import ReportedHealth, ResourceHealth

_BY_VALUE: Final = {health.value: health for health in ReportedHealth}


def read(status: Mapping[str, Any]) -> tuple[ResourceHealth, ...]:
    """Return what a pod's status says of its devices, in an order that does not depend on kubelet's maps.

    A word that Kubernetes does not know (the KEP thinks of ``PermanentlyUnhealthy``) reads as Unknown.
    """
    return tuple(sorted(_items(status), key=lambda item: (item.resource, item.id, item.health.value, item.message)))


def _items(status: Mapping[str, Any]) -> Iterator[ResourceHealth]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            for allocated in container.get("allocatedResourcesStatus") or ():
                for item in allocated.get("resources") or ():
                    yield ResourceHealth(
                        resource=allocated["name"],
                        id=item["resourceID"],
                        health=_BY_VALUE.get(item.get("health", ""), ReportedHealth.UNKNOWN),
                        message=item.get("message") or "",
                    )
