"""The names under which findings carry their evidence."""

from typing import Final

CAUSED_BY_XID: Final = "caused_by_xid"
"""The driver itself names the Xid that this one is an effect of (``caused by previous Xid 48``)."""

RECOVERY_ACTION: Final = "recovery_action"
"""The driver's own verdict as a number of NVML's ``nvmlDeviceGpuRecoveryAction`` (field 230), from Xid 154."""

SEVERITY: Final = "severity"
"""The driver's word in the line: ``Fatal`` or ``Non-fatal``."""

LINK: Final = "link"
"""The NVLink that the line names."""

NVSWITCH: Final = "nvswitch"
"""The switch that printed the line; ``Finding.device`` then is the switch, not a GPU."""

GPU_UUID: Final = "gpu_uuid"
"""The UUID that the driver printed for this PCI address earlier in the same log."""

SUBCODE: Final = "subcode"
"""The number of an NVLink sub-code, from the first register in the line."""

SUBCODE_NAME: Final = "subcode_name"
"""What the catalog calls the sub-code."""

GPC: Final = "gpc"
"""The graphics processing cluster of the GPU that the line names; with ``TPC`` and ``SM`` a place on the chip."""

TPC: Final = "tpc"
SM: Final = "sm"

MMU_CLIENT: Final = "mmu_client"
"""The part of the GPU whose access to memory failed (``GPCCLIENT_T1_0``), from Xid 31."""

REPORTED_BY: Final = "reported_by"
"""The PCIe port that reported an error of the device, where the line names the port alone."""

INTERFACE: Final = "interface"
"""The network interface that the line names. It may be another one's name by now."""

MODULE: Final = "module"
"""The cage of the network adapter, from 0."""

CONTAINER_ID: Final = "container_id"
"""The container that the line names by its cgroup."""

POD_UID: Final = "pod_uid"
"""The pod that the line names by its cgroup."""

OOM_SCOPE: Final = "oom_scope"
"""Whose memory was used up: ``cgroup`` (a limit of the pod's or the container's) or ``node``."""

SECONDS: Final = "seconds"
"""For how long it has lasted, as the line says."""

LOOK_BACK: Final = "look_back"
"""``true``: it was in the log before an agent first ran on this boot. It counts for the verdict; whether it may
restart a container is for ``Finding.boot_seconds`` against the start of that container."""
