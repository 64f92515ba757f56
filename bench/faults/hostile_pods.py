"""Fault: pods with names, hooks and files that no sensible pod has; the agent reads what they write."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.faults import looking
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from bench.faults.trainers import Trainer
from hack.devnode import trainer

PROMISE: Final = (
    "A pod whose process, files or hooks have malformed names ends no agent: it is restarted as any other, and "
    "so are the other pods."
)

_CUT_NAME: Final = r"/tmp/$(printf 'busybox\350\256')"
"""The kernel cuts names at 15 bytes, in the middle of a character (PR_SET_NAME in prctl(2))."""

_SEPARATORS: Final = r"/tmp/$(printf 'busybox\013\014\034\302\205\342\200\250x')"
"""With all that Python takes for the end of a line: vertical tab, form feed, FS, NEL, LINE SEPARATOR."""

_LEFT: Final = "left"
"""The file on the volume in which a trainer records that it has found something in /dev/shm, and which container it is.
"""
_BEGUN: Final = "begun"
"""The file on the volume in which each trainer records which container it is.

On a busy machine kubelet may have started a container next to kubemend's successor. That container may have written
files to /dev/shm after it was emptied, which the successor then finds.
"""
_OF_KUBELET: Final = "kubelet"

_GRACE: Final = {"kubemend.io/restart": "InPlace", "kubemend.io/grace-period": "1s"}
_CLEAN: Final = {"kubemend.io/restart": "InPlace", "kubemend.io/clean": "shm"}
_LEAVES: Final = f"""
echo "${{KUBEMEND_RESTART_COUNT:-{_OF_KUBELET}}}" >> {trainer.CHECKPOINTS}/{_BEGUN}
[ ! -e /dev/shm/left ] || echo "${{KUBEMEND_RESTART_COUNT:-{_OF_KUBELET}}}" >> {trainer.CHECKPOINTS}/{_LEFT}
touch /dev/shm/left
{trainer.TRAIN}"""


def _run_as(path: str, then: str) -> str:
    """Return a script that runs a copy of the shell under another name."""
    return f"""f="{path}"\ncp /bin/busybox "$f"\nexec "$f" sh -c '{then}'"""


def _with_hook(pod: dict[str, Any], *, hook: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["lifecycle"] = {"preStop": {"httpGet": {"port": 8080, "path": "/", **hook}}}


def _with_a_mapped_file(pod: dict[str, Any]) -> None:
    """Have the sidecar run from a file whose name is full of line separators: it maps it."""
    pod["spec"]["initContainers"][1]["command"] = ["/bin/sh", "-c", _run_as(_SEPARATORS, trainer.SIDECAR)]


def _is_cut(proc: Path) -> bool:
    try:
        (proc / "comm").read_text("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _maps_it(proc: Path) -> bool:
    return b"\v" in (proc / "maps").read_bytes()


@dataclass(frozen=True, slots=True)
class Attack:
    """Describe a pod; ``fields`` are those of ``Stage.trainer``.

    ``is_meant`` checks that a container's process is as intended: it gets the process's directory in /proc.
    """

    name: str
    what: str
    fields: dict[str, Any]
    container: str = "trainer"
    is_meant: Callable[[Path], bool] = lambda _: True


_ATTACKS: Final = (
    Attack(
        "misnamed",
        "a process whose name is not UTF-8",
        {"script": _run_as(_CUT_NAME, trainer.TRAIN)},
        is_meant=_is_cut,
    ),
    Attack(
        "mapping",
        "a mapped file whose name has line separators, in a pod that has its /dev/shm emptied",
        {"annotations": _CLEAN, "script": _LEAVES, "change": _with_a_mapped_file},
        container="shipper",
        is_meant=_maps_it,
    ),
    Attack(
        "header",
        "a preStop hook with a newline in a header",
        {
            "annotations": _GRACE,
            "restart_policy": "Always",
            "change": functools.partial(_with_hook, hook={"httpHeaders": [{"name": "X-A", "value": "a\nb"}]}),
        },
    ),
    Attack(
        "nowhere",
        "a preStop hook on the host a..b",
        {
            "annotations": _GRACE,
            "restart_policy": "Always",
            "change": functools.partial(_with_hook, hook={"host": "a..b"}),
        },
    ),
)
_NO_TIME_TO_EMPTY: Final = ("kubelet's container has run already", "not emptied within")
"""Messages that are acceptable on a busy machine: kubelet was first, or the cleaning timed out."""
_AT_ONCE: Final = 2
"""Two GPUs of the node are for the other pods."""


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Have each of them fail, and a normal pod, too; another one has no fault."""
    del scale  # cannot be shortened
    async with stage.product() as product:
        agent, log = await product.start_agent(0, alone=True), product.log(0)
        async with stage.trainer("well-behaved") as good, stage.trainer("beside") as bystander:
            for first in range(0, len(_ATTACKS), _AT_ONCE):
                await _attacked(stage, reported, attacks=_ATTACKS[first : first + _AT_ONCE], good=good)
            acted, faults = log.events("restart.acted"), len(_ATTACKS) + len(_ATTACKS) // _AT_ONCE
            reported.keeps(Kind.UNASKED, f"{len(acted)} restarts for {faults} faults", holds=len(acted) == faults)
            reported.keeps(Kind.UNASKED, "the pod without a fault was restarted", holds=await bystander.is_untouched())
        hooks = log.events("hook.pre_stop_failed")
        reported.keeps(Kind.DECISION, f"{len(hooks)} of 2 hooks were reported as failed", holds=len(hooks) == 2)
        after = await looking.metrics(agent.metrics_address)
        defects = after.get("kubemend_contained_failures_total", 0.0)
        reported.keeps(Kind.PROCESS, f"{defects:g} internal errors", holds=defects == 0)
        reported.keeps(Kind.PROCESS, "the agent ended", holds=agent.child.returncode is None)


async def _attacked(stage: Stage, reported: Reported, *, attacks: Sequence[Attack], good: Trainer) -> None:
    """Have these pods fail, and then the well-behaved one."""
    async with contextlib.AsyncExitStack() as stack:
        hostile = [await stack.enter_async_context(stage.trainer(each.name, **each.fields)) for each in attacks]
        for attack, pod in zip(attacks, hostile, strict=True):
            reported.tries(attack.what)
            proc = Path("/proc", str(await pod.pid(attack.container)))
            reported.keeps(Kind.UNREPORTED, f"{pod.name} is not as intended", holds=attack.is_meant(proc))
        olds = [await pod.fails() for pod in hostile]
        before = await good.fails()
        await good.verified(before)
        reported.keeps(Kind.RESTART, "the normal pod was not restarted in place", holds=await good.is_in_place())
        for pod, old in zip(hostile, olds, strict=True):
            message = (await pod.verified(old)).condition("InPlaceRestart")["message"]
            reported.keeps(Kind.RESTART, f"{pod.name} was not restarted in place", holds=await pod.is_in_place())
            same = (await pod.see()).running["shipper"] == pod.first.running["shipper"]
            reported.keeps(Kind.UNASKED, f"the sidecar of {pod.name} was restarted", holds=same)
            emptied = not _found_by_ours(pod.volume) or any(reason in message for reason in _NO_TIME_TO_EMPTY)
            reported.keeps(Kind.RESTART, f"/dev/shm of {pod.name} was not emptied: {message}", holds=emptied)


def _found_by_ours(volume: Path) -> bool:
    """Return whether kubemend's successor found its predecessor's files, and no kubelet's container ran between."""
    left, begun = volume / _LEFT, volume / _BEGUN
    if not left.exists() or not set(left.read_text().split()) - {_OF_KUBELET}:
        return False
    return begun.read_text().split().count(_OF_KUBELET) == 1  # the first one
