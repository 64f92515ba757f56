"""List a GPU's MIG instances by the ids in events and log lines. Runs in the worker process only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kubemend.agent.model.devices import DevicePartition, Gpu
from kubemend.agent.sources.nvml.calls import Outcome, ReadError, Unsupported, Value

_NOT_FOUND = 6

Ask = Callable[..., Outcome[Any]]


def instances(handle: object, *, mode: Outcome[Any], ask: Ask) -> Outcome[tuple[DevicePartition, ...]]:
    """Return the instances of a GPU; ``mode`` is the outcome of nvmlDeviceGetMigMode."""
    if not isinstance(mode, Value):
        return mode
    if mode.value[0] == 0:
        return Value(())
    count = ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    if not isinstance(count, Value):
        return count
    found = []
    for index in range(count.value):
        instance = _instance(handle, index, ask=ask)
        if isinstance(instance, Value):
            found.append(instance.value)
        elif not (isinstance(instance, ReadError) and instance.code == _NOT_FOUND):  # NOT_FOUND: an empty place
            return instance
    return Value(tuple(found))


def put_into(gpu: Gpu, instances: Outcome[tuple[DevicePartition, ...]]) -> Gpu:
    """Return the GPU with its current instances; with the last known ones where they could not be read."""
    if isinstance(instances, Value):
        return gpu if instances.value == gpu.partitions else replace(gpu, partitions=instances.value)
    return replace(gpu, partitions=()) if isinstance(instances, Unsupported) and gpu.partitions else gpu


def _instance(handle: object, index: int, *, ask: Ask) -> Outcome[DevicePartition]:
    mig = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
    if not isinstance(mig, Value):
        return mig
    answers: list[Any] = []
    for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"):
        answer = ask(function, mig.value)
        if not isinstance(answer, Value):
            return answer
        answers.append(answer.value)
    uuid, gpu_instance, compute_instance = answers
    return Value(DevicePartition(uuid=uuid, gpu_instance=gpu_instance, compute_instance=compute_instance))
