"""Statuses of the NVML component, with the problem and the hint."""

from kubemend.agent.sources.nvml import changes
from kubemend.common.components import ComponentState, ComponentStatus

RELEASED = ComponentStatus(
    ComponentState.DEGRADED, "NVML is released for a GPU reset", "nothing to do: it is reopened after the reset"
)


def ready(view: changes.View, *, needs_events: bool) -> ComponentStatus:
    """NVML answers; GPUs that it could not read are named, and those whose events do not arrive if they are needed."""
    silent = view.without_events if needs_events else ()
    problems = [*view.unreadable, *(f"GPU {uuid}: its events do not arrive, only polls show it" for uuid in silent)]
    if not problems:
        return ComponentStatus(ComponentState.READY)
    return ComponentStatus(
        ComponentState.DEGRADED,
        "; ".join(problems),
        "run nvidia-smi on the node and look for NVRM in its kernel log",
    )


def unresponsive(*, call: str, seconds: float) -> ComponentStatus:
    """A call into the driver does not return."""
    return ComponentStatus(
        ComponentState.DEGRADED,
        f"the NVIDIA driver is unresponsive: {call} has not returned within {seconds:g} s",
        "look for NVRM in the node's kernel log; reset the GPU or reboot the node if the driver does not recover",
    )


def no_library(*, seen_gpus: bool, on_bus: int) -> ComponentStatus:
    """No libnvidia-ml on this node: a CPU node, unless GPUs have been seen or are on the PCI bus."""
    hint = "make the driver's libraries visible to the agent"
    return _absent("libnvidia-ml.so.1 is not found", hint=hint, seen_gpus=seen_gpus, on_bus=on_bus)


def no_driver(*, seen_gpus: bool, on_bus: int) -> ComponentStatus:
    """The library exists, the kernel module does not: a CPU node, unless GPUs have been seen or are on the PCI bus."""
    hint = "load the nvidia kernel module"
    return _absent("no NVIDIA driver is loaded", hint=hint, seen_gpus=seen_gpus, on_bus=on_bus)


def not_initialised(detail: str) -> ComponentStatus:
    """nvmlInit failed, or NVML stopped answering as a whole."""
    return ComponentStatus(
        ComponentState.DEGRADED,
        f"NVML cannot be used: {detail}",
        "run nvidia-smi on the node; a version mismatch ends when the new driver is loaded and its library visible",
    )


def not_started(error: OSError) -> ComponentStatus:
    """The worker process could not be started."""
    return ComponentStatus(
        ComponentState.DEGRADED,
        f"the NVML worker cannot be started: {error}",
        "check the agent's memory and process limits",
    )


def crashed(status: int) -> ComponentStatus:
    """The worker ended without a final message, for example by a crash in the library."""
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return ComponentStatus(
        ComponentState.DEGRADED,
        f"the NVML worker ended {how}",
        "see nvml.worker_stderr in the agent's log; it is started again",
    )


def _absent(what: str, *, hint: str, seen_gpus: bool, on_bus: int) -> ComponentStatus:
    if seen_gpus:
        return ComponentStatus(ComponentState.DEGRADED, f"{what} any longer, though this node has had GPUs", hint)
    if on_bus:
        return ComponentStatus(
            ComponentState.DEGRADED,
            f"{what} on this node, which has {on_bus} NVIDIA GPUs on its PCI bus",
            "load the driver, and make its libraries visible to the agent (the NVIDIA container toolkit does this)",
        )
    return ComponentStatus(
        ComponentState.IDLE, f"{what} on this node", f"nothing to do on a node without GPUs; else {hint}"
    )
