"""The names under which findings carry their evidence."""

from typing import Final

CAUSED_BY_XID: Final = "caused_by_xid"
"""The Xid that the driver itself names as the cause of this one (``caused by previous Xid 48``)."""

RECOVERY_ACTION: Final = "recovery_action"
"""The driver's recommended action as a number of NVML's ``nvmlDeviceGpuRecoveryAction`` (field 230), from Xid 154."""

SEVERITY: Final = "severity"
"""The driver's severity in the line: ``Fatal`` or ``Non-fatal``."""

LINK: Final = "link"
"""The NVLink that the line names."""

NVSWITCH: Final = "nvswitch"
"""The switch that printed the line; ``Finding.device`` then is the switch, not a GPU."""

GPU_UUID: Final = "gpu_uuid"
"""The UUID that the driver printed for this PCI address earlier in the same log."""

SUBCODE: Final = "subcode"
"""The number of an NVLink sub-code, from the first register in the line."""

SUBCODE_NAME: Final = "subcode_name"
"""The catalog's name of the sub-code."""

GPC: Final = "gpc"
"""The graphics processing cluster of the GPU that the line names; with ``TPC`` and ``SM`` a location on the chip."""

TPC: Final = "tpc"
SM: Final = "sm"

MMU_CLIENT: Final = "mmu_client"
"""The part of the GPU whose access to memory failed (``GPCCLIENT_T1_0``), from Xid 31."""

REPORTED_BY: Final = "reported_by"
"""The PCIe port that reported an error of the device, where the line names the port alone."""

INTERFACE: Final = "interface"
"""The network interface that the line names. The name may belong to another one by now."""

MODULE: Final = "module"
"""The cage of the network adapter, from 0."""

CONTAINER_ID: Final = "container_id"
"""The container that the line names by its cgroup."""

POD_UID: Final = "pod_uid"
"""The pod that the line names by its cgroup."""

OOM_SCOPE: Final = "oom_scope"
"""The exhausted memory: ``cgroup`` (a limit of the pod or the container) or ``node``."""

SECONDS: Final = "seconds"
"""The duration given in the line, in seconds."""

LOOK_BACK: Final = "look_back"
"""``true``: the record was in the log before an agent first ran on this boot.

It counts for the verdict. Whether it may restart a container is decided by comparing ``Finding.boot_seconds`` with the
start of that container.
"""
