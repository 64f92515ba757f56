"""The NVML part's conditions in words for people: what is missing, and the mend."""

from agent.sources.nvml import changes
from common.parts import PartState, PartStatus

RELEASED = PartStatus(
    PartState.DEGRADED, "NVML is let go of for a GPU reset", "nothing to do: it is taken up again after the reset"
)


def ready(view: changes.View) -> PartStatus:
    """NVML answers; GPUs that it could not read are named."""
    if not view.unreadable:
        return PartStatus(PartState.READY)
    return PartStatus(
        PartState.DEGRADED, "; ".join(view.unreadable), "run nvidia-smi on the node and look for NVRM in its kernel log"
    )


def unresponsive(*, call: str, seconds: float) -> PartStatus:
    """A call into the driver does not come back."""
    return PartStatus(
        PartState.DEGRADED,
        f"the NVIDIA driver is unresponsive: {call} has not returned within {seconds:g} s",
        "look for NVRM in the node's kernel log; reset the GPU or reboot the node if it does not come back by itself",
    )


def no_library(*, seen_gpus: bool, on_bus: int) -> PartStatus:
    """No libnvidia-ml on this node: a CPU node, unless GPUs have been seen, or are on the PCI bus."""
    mend = "make the driver's libraries visible to the agent"
    return _absent("libnvidia-ml.so.1 is not found", mend=mend, seen_gpus=seen_gpus, on_bus=on_bus)


def no_driver(*, seen_gpus: bool, on_bus: int) -> PartStatus:
    """The library is there, the kernel module is not: a CPU node, unless GPUs have been seen, or are on the PCI bus."""
    mend = "load the nvidia kernel module"
    return _absent("no NVIDIA driver is loaded", mend=mend, seen_gpus=seen_gpus, on_bus=on_bus)


def not_initialised(detail: str) -> PartStatus:
    """nvmlInit failed, or NVML stopped answering as a whole."""
    return PartStatus(
        PartState.DEGRADED,
        f"NVML cannot be used: {detail}",
        "run nvidia-smi on the node; a version mismatch ends when the new driver is loaded and its library visible",
    )


def not_started(error: OSError) -> PartStatus:
    """The worker process could not be started."""
    return PartStatus(
        PartState.DEGRADED, f"the NVML worker cannot be started: {error}", "check the agent's memory and process limits"
    )


def crashed(status: int) -> PartStatus:
    """The worker ended without a word, such as by a crash inside the library."""
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return PartStatus(
        PartState.DEGRADED,
        f"the NVML worker ended {how}",
        "see nvml.worker_stderr in the agent's log; it is started again",
    )


def _absent(what: str, *, mend: str, seen_gpus: bool, on_bus: int) -> PartStatus:
    if seen_gpus:
        return PartStatus(PartState.DEGRADED, f"{what} any more, though this node has had GPUs", mend)
    if on_bus:
        return PartStatus(
            PartState.DEGRADED,
            f"{what} on this node, which has {on_bus} NVIDIA GPUs on its PCI bus",
            "load the driver, and make its libraries visible to the agent (the NVIDIA container toolkit does that)",
        )
    return PartStatus(PartState.IDLE, f"{what} on this node", f"nothing to do on a node without GPUs; else {mend}")
