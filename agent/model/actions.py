"""Action classes: the remedies that faults call for, ordered by how much they disturb."""

import enum


class ActionClass(enum.Enum):
    """The remedy that a fault calls for.

    ``severity`` orders them; a verdict never steps down except on evidence. ``ASK_DRIVER`` means that only the driver
    can decide (NVML field 230 or Xid 154): until it has, nothing is restarted on the device. ``OBSERVE`` asks for no
    immediate action: the device works, but with less performance or reliability than it should.
    """

    NONE = "None"
    OBSERVE = "Observe"
    RESTART_APP = "RestartApp"
    ASK_DRIVER = "AskDriver"
    RESET_DEVICE = "ResetDevice"
    REBOOT_NODE = "RebootNode"
    REPLACE = "Replace"

    @property
    def severity(self) -> int:
        """Rank from 0 (nothing to do) to 6 (replace the hardware)."""
        return _SEVERITY[self]

    @property
    def leaves_device_usable(self) -> bool:
        """Whether a new process may start on the device without more than this action."""
        return self in (ActionClass.NONE, ActionClass.OBSERVE, ActionClass.RESTART_APP)


_SEVERITY = {action: rank for rank, action in enumerate(ActionClass)}
