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

LOOK_BACK: Final = "look_back"
"""``true``: it was in the log before an agent first ran on this boot. It counts for the verdict; whether it may
restart a container is for ``Finding.boot_seconds`` against the start of that container."""
