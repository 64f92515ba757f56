"""Attribute a finding to containers. Pure.

There are two questions. *Concerned* are all holders of the device: their pods' conditions show it. *To restart* is only
the container that the evidence names: that of the process in the log line, or the only holder if the kernel knows no
process. A fault in a monitoring process on the host must not end the program on the same GPU. NVML names no process of
any fault, so its report alone restarts nothing: the kernel log has the same fault, with the process.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, Source
from kubemend.agent.model.workloads import ContainerId, ContainerRef


class AttributionResult(enum.Enum):
    """How the container to restart was found, or why there is none.

    ``PROCESS_UNREPORTED``: only NVML has reported the fault.
    """

    PROCESS = "Process"
    SOLE_HOLDER = "SoleHolder"
    NOT_APP_CLASS = "NotAppClass"
    PROCESS_OUTSIDE_PODS = "ProcessOutsidePods"
    PROCESS_PUT_IN = "ProcessPutIn"
    PROCESS_GONE = "ProcessGone"
    PROCESS_FOREIGN = "ProcessForeign"
    PROCESS_UNREPORTED = "ProcessUnreported"
    SEVERAL_HOLDERS = "SeveralHolders"
    NO_HOLDER = "NoHolder"
    HOLDERS_UNKNOWN = "HoldersUnknown"


class ProcessLookup(enum.Enum):
    """The result of looking up a finding's pid, when it is not the process of a pod's container.

    ``NOT_LISTED``: a process in a container that the runtime does not list: it just started, or is not kubelet's.
    ``PUT_IN``: it is in a container but does not descend from its first process, such as one started by ``kubectl
    exec``. ``FOREIGN``: the kernel's pids are not those of this node's /proc, as on a node that is a container itself.
    """

    NONE_NAMED = "none-named"
    OUTSIDE_PODS = "outside-pods"
    GONE = "gone"
    NOT_LISTED = "not-listed"
    PUT_IN = "put-in"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Attribution:
    """``concerned`` hold the device or contain the process; ``restart`` (a subset, at most one) must be restarted.

    ``container`` is the one of the process, which may have a successor by now; None: it is unknown.
    """

    concerned: tuple[ContainerRef, ...]
    restart: tuple[ContainerRef, ...]
    how: AttributionResult
    container: ContainerId | None = None


def attribute(
    finding: Finding, *, process: ContainerRef | ProcessLookup, holders: Sequence[ContainerRef] | None
) -> Attribution:
    """Attribute a finding. ``holders`` None means that kubelet did not return the holders of the device."""
    known = tuple(holders or ())
    if isinstance(process, ContainerRef):
        concerned = (process, *(holder for holder in known if holder != process))
        restart = (process,) if finding.action is ActionClass.RESTART_APP else ()
        return Attribution(
            concerned, restart, AttributionResult.PROCESS if restart else AttributionResult.NOT_APP_CLASS
        )
    if finding.action is not ActionClass.RESTART_APP:
        return Attribution(known, (), AttributionResult.NOT_APP_CLASS)
    if process is ProcessLookup.OUTSIDE_PODS:
        return Attribution(known, (), AttributionResult.PROCESS_OUTSIDE_PODS)
    if process is ProcessLookup.PUT_IN:
        return Attribution(known, (), AttributionResult.PROCESS_PUT_IN)
    if process is ProcessLookup.FOREIGN:
        return Attribution(known, (), AttributionResult.PROCESS_FOREIGN)
    if process is ProcessLookup.GONE:
        return Attribution(known, (), AttributionResult.PROCESS_GONE)
    if holders is None or process is ProcessLookup.NOT_LISTED:
        return Attribution(known, (), AttributionResult.HOLDERS_UNKNOWN)
    if not known:
        return Attribution((), (), AttributionResult.NO_HOLDER)
    if len(known) > 1:
        return Attribution(known, (), AttributionResult.SEVERAL_HOLDERS)
    if finding.source is Source.NVML:
        return Attribution(known, (), AttributionResult.PROCESS_UNREPORTED)
    return Attribution(known, known, AttributionResult.SOLE_HOLDER)
