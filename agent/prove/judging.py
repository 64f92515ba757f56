"""Turn measurements into verdicts. Pure.

A GPU passes only if every test was finished, has compared all that it should, and found no difference. It fails only by
evidence that nothing but the GPU, its memory or its way to the host explains. Everything else is unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kubemend.agent.model.devices import DeviceId, Gpu
from kubemend.agent.prove.measurements import OF_ONE_GPU, CudaFailure, Facts, Hanging, Measured, Step, Test
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from kubemend.agent.sources.nvml.protocol import Condition, DeviceAnswer

SLOWEST_SHARE: Final = 0.01
"""Of the nominal memory bandwidth, which is that of the highest clocks. Operators lock lower ones (``nvidia-smi -lmc``,
``-lgc``): the lowest memory clock of boards with GDDR is 405 MHz, of 9001 MHz on an L40S and 14001 MHz with GDDR7, a
thirty-fifth. An H200 reached 0.19 at its full clocks, and its lowest are a sixth of those.
"""

SHORTEST_HANG: Final = 10.0
"""Seconds. A call that has not returned for a shorter time may only be slow, as the start of a context can be."""

_FEWEST_BYTES: Final = 64 << 20  # with less, the start of a kernel counts for too much

_OF_HARDWARE: Final = frozenset({214, 220, 226, 700, 702, 714, 715, 716, 717, 718, 719, 999})
"""CUresults that a test's kernel or copy gets only from a GPU that does not work: uncorrectable ECC and NVLink errors,
errors contained by the driver, illegal addresses and instructions, launches that failed or took seconds, unknown."""

_NO_DEVICE: Final = frozenset({100, 101})
_OUT_OF_MEMORY: Final = 2
_UNAVAILABLE: Final = 46
_MODES: Final[Mapping[int, str]] = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

_WRONG: Final[Mapping[Test, Reason]] = {
    Test.INTEGER_PRODUCT: Reason.WRONG_RESULT,
    Test.FLOAT_PRODUCT: Reason.WRONG_RESULT,
    Test.TENSOR_PRODUCT: Reason.WRONG_RESULT,
    Test.MEMORY: Reason.WRONG_MEMORY,
    Test.HOST_TO_DEVICE: Reason.WRONG_COPY,
    Test.DEVICE_TO_HOST: Reason.WRONG_COPY,
    Test.PEER: Reason.WRONG_COPY,
}


def obstacle(gpu: Gpu, answer: DeviceAnswer | None, *, mps: bool, lists_all: bool = True) -> Verdict | None:
    """Return the verdict on a GPU that must not be used for a proof; None: it is idle.

    ``answer`` is NVML's current one; ``mps``: an MPS control daemon runs on this machine. ``lists_all``: the driver
    lists all processes of the machine, not only those of this PID namespace.
    """
    if answer is None or answer.condition is not Condition.ANSWERS:
        reason = answer.error or answer.condition.value if answer is not None else "no answer"
        return Verdict(Outcome.UNKNOWN, Reason.NVML_UNCLEAR, f"NVML does not show the GPU's state: {reason}")
    if gpu.partitions:
        return Verdict(Outcome.SKIPPED, Reason.MIG, f"it is divided into {len(gpu.partitions)} MIG instances")
    if mps:
        return Verdict(Outcome.SKIPPED, Reason.MPS, "an MPS daemon runs on this machine")
    if answer.processes is None:
        return Verdict(Outcome.UNKNOWN, Reason.NVML_UNCLEAR, "NVML does not list the GPU's processes")
    if answer.processes:
        pids = sorted(process.pid for process in answer.processes)
        shown = ", ".join(map(str, pids[:4])) + (", …" if len(pids) > 4 else "")
        return Verdict(Outcome.SKIPPED, Reason.IN_USE, f"processes use it: {shown}", {"pids": pids})
    if not lists_all:
        hint = "share the host's (--pid=host, hostPID: true)"
        return Verdict(Outcome.UNKNOWN, Reason.NVML_UNCLEAR, f"NVML lists only this PID namespace's processes: {hint}")
    return None


def judge(uuid: DeviceId, measured: Measured, *, alone: bool = True) -> Verdict:
    """Return the verdict on one GPU. ``alone``: it was seen without other processes after the measurements as well."""
    facts = measured.facts
    if facts is not None and not facts.are_of(uuid):
        return Verdict(Outcome.UNKNOWN, Reason.NOT_VISIBLE, f"CUDA shows another device in its place: {facts.uuid}")
    wrong = next(_differences(measured.steps), None)
    if wrong is not None:
        return wrong
    stopped = _stopped(measured)
    if stopped is not None:
        return stopped
    if (missing := _missing(measured.steps)) or not measured.finished:
        what = f"no result of {', '.join(test.value for test in missing)}" if missing else "the worker did not finish"
        return Verdict(Outcome.UNKNOWN, Reason.INCOMPLETE, f"{what}; {measured.ended or 'its process ended early'}")
    assert facts is not None
    return _speed(facts, measured.steps, alone=alone)


def pairs(measured: Measured) -> Iterator[tuple[tuple[str, str], Verdict]]:
    """Yield each pair of GPUs, by UUIDs of source and destination, with the verdict on its copies."""
    for step in measured.steps:
        if step.pair is not None:
            wrong = next(_differences([step]), None)
            passed = Verdict(Outcome.PASSED, evidence=_speeds([step]))
            yield step.pair, wrong or (passed if step.planned else Verdict(Outcome.UNKNOWN, Reason.INCOMPLETE))
    for each in measured.no_access:
        message = "the driver gives the second no access to the memory of the first"
        yield each.pair, Verdict(Outcome.SKIPPED, Reason.NO_PEER_ACCESS, message)
    if measured.hanging is not None and measured.hanging.pair is not None:
        yield measured.hanging.pair, _did_not_answer(measured.hanging)
    elif measured.failure is not None and measured.failure.pair is not None:
        yield measured.failure.pair, _cuda_error(measured.failure)


def unfinished_pairs(measured: Measured) -> str:
    """Return why not all pairs of GPUs have a verdict; empty if all have one."""
    if measured.finished:
        return ""
    if measured.hanging is not None:
        return _did_not_answer(measured.hanging).message
    if measured.failure is not None:
        return _cuda_error(measured.failure).message
    return measured.no_library or measured.ended or "its process ended early"


def _differences(steps: Iterable[Step]) -> Iterator[Verdict]:
    for step in steps:
        where = f"{step.test.value}{f' ({step.detail})' if step.detail else ''}"
        if step.wrong:
            message = (
                f"{where}: {step.wrong} of {step.planned} values are wrong, the first at offset {step.offset}: "
                f"{step.got:#x} in place of {step.expected:#x}"
            )
        elif step.compared != step.planned:
            message = f"{where}: {step.compared} of {step.planned} values were compared"
        else:
            continue
        yield Verdict(Outcome.FAILED, _WRONG[step.test], message, _evidence(step))


def _stopped(measured: Measured) -> Verdict | None:
    facts = measured.facts
    if measured.no_library is not None:
        return Verdict(Outcome.SKIPPED, Reason.NO_CUDA, f"libcuda.so.1 cannot be used: {measured.no_library}")
    if facts is not None and facts.compute_mode:
        mode = _MODES.get(facts.compute_mode, str(facts.compute_mode))
        return Verdict(Outcome.SKIPPED, Reason.COMPUTE_MODE, f"its compute mode is {mode}")
    if measured.hanging is not None:
        return _did_not_answer(measured.hanging)
    if measured.failure is not None:
        return _cuda_error(measured.failure)
    if facts is not None and facts.memory_free is not None and facts.memory_free < facts.needed:
        free, needed = facts.memory_free >> 20, facts.needed >> 20
        return Verdict(Outcome.SKIPPED, Reason.TOO_LITTLE_MEMORY, f"{free} MiB are free, {needed} MiB are needed")
    return None


def _did_not_answer(hanging: Hanging) -> Verdict:
    """Return the verdict on a call that hangs. cuInit starts the whole driver, so it accuses no GPU."""
    hangs = hanging.call != "cuInit" and hanging.seconds >= SHORTEST_HANG
    outcome = Outcome.FAILED if hangs else Outcome.UNKNOWN
    during = f" in {hanging.test.value}" if hanging.test is not None else ""
    message = f"{hanging.call} did not return within {hanging.seconds:g} s{during}"
    return Verdict(outcome, Reason.DID_NOT_ANSWER, message, {"call": hanging.call, "seconds": hanging.seconds})


def _cuda_error(failure: CudaFailure) -> Verdict:
    evidence = {"call": failure.call, "code": failure.code, "name": failure.name}
    during = f" in {failure.test.value}" if failure.test is not None else ""
    message = f"{failure.call}: {failure.name} ({failure.code}){during}"
    if failure.test is not None and failure.code in _OF_HARDWARE:
        return Verdict(Outcome.FAILED, Reason.CUDA_ERROR, message, evidence)
    if failure.code == _OUT_OF_MEMORY:
        return Verdict(Outcome.SKIPPED, Reason.TOO_LITTLE_MEMORY, message, evidence)
    if failure.code in _NO_DEVICE:
        return Verdict(Outcome.UNKNOWN, Reason.NOT_VISIBLE, message, evidence)
    if failure.code == _UNAVAILABLE:
        return Verdict(Outcome.SKIPPED, Reason.IN_USE, message, evidence)
    return Verdict(Outcome.UNKNOWN, Reason.CUDA_ERROR, message, evidence)


def _missing(steps: Sequence[Step]) -> list[Test]:
    done = {step.test for step in steps if step.planned}
    return [test for test in OF_ONE_GPU if test not in done]


def _speed(facts: Facts, steps: Sequence[Step], *, alone: bool) -> Verdict:
    evidence = _speeds(steps)
    timed = [step for step in steps if step.test is Test.MEMORY and step.seconds > 0 and step.moved >= _FEWEST_BYTES]
    best = max((step.moved / step.seconds for step in timed), default=None)
    if best is None or not facts.nominal_rate or best >= SLOWEST_SHARE * facts.nominal_rate:
        return Verdict(Outcome.PASSED, evidence=evidence)
    message = f"memory moves {best / 1e9:.1f} GB/s of nominal {facts.nominal_rate / 1e9:.0f} GB/s"
    evidence = {**evidence, "gigabytes_per_second": round(best / 1e9, 2), "nominal": round(facts.nominal_rate / 1e9, 2)}
    if not alone:
        message = f"{message}, but another process may use it by now"
        return Verdict(Outcome.UNKNOWN, Reason.SLOW_MEMORY, message, evidence)
    return Verdict(Outcome.FAILED, Reason.SLOW_MEMORY, message, evidence)


def _evidence(step: Step) -> dict[str, Any]:
    return {
        "test": step.test.value,
        "detail": step.detail,
        "planned": step.planned,
        "compared": step.compared,
        "wrong": step.wrong,
        "offset": step.offset,
        "expected": f"{step.expected:#x}",
        "got": f"{step.got:#x}",
        "seconds": step.seconds,
    }


def _speeds(steps: Iterable[Step]) -> dict[str, Any]:
    """Return the time of each test, and of those that move memory their best rate, in GB/s."""
    speeds: dict[str, Any] = {}
    for step in steps:
        entry = speeds.setdefault(step.test.value, {"seconds": 0.0})
        entry["seconds"] = round(entry["seconds"] + step.seconds, 6)
        if step.moved and step.seconds > 0:
            rate = round(step.moved / step.seconds / 1e9, 2)
            entry["bytes"] = step.moved
            entry["gigabytes_per_second"] = max(rate, entry.get("gigabytes_per_second", rate))
    return {"tests": speeds} if speeds else {}
