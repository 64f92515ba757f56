"""Witness faults as they come: the kernel's lines and NVML's events, each with the Unix time at which it was read."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubemend.agent.sources import kmsg_readers

KERNEL_LOG: Final = Path("/dev/kmsg")
XID: Final = "NVRM: Xid"
_EVENT_WAIT_MS: Final = 100


@dataclass
class KernelLog:
    """The driver's records since the start, raw, each with its time."""

    records: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def followed(cls, path: Path = KERNEL_LOG) -> AsyncIterator["KernelLog"]:
        """Follow a kernel log for the length of the block; earlier records are skipped."""
        made, reader = cls(), kmsg_readers.open_log(path)
        await reader.wait()
        while not reader.read().at_end:
            pass
        task = asyncio.create_task(made._follow(reader), name="kernel log")
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            reader.close()

    def xids(self) -> list[tuple[float, str]]:
        """Return those that report an Xid."""
        return [(at, record) for at, record in self.records if XID in record]

    def codes(self) -> set[int]:
        """Return the Xids' codes."""
        return {int(record.partition("): ")[2].partition(",")[0]) for _, record in self.xids()}

    async def _follow(self, reader: kmsg_readers.RecordReader) -> None:
        while True:
            await reader.wait()
            batch, now = reader.read(), time.time()
            self.records += [(now, text) for each in batch.records if "NVRM" in (text := each.decode(errors="replace"))]


@contextlib.contextmanager
def nvml_events() -> Iterator[list[tuple[float, str, int]]]:
    """Collect NVML's events of all kinds on all GPUs for the length of the block: time, type and data."""
    import pynvml as nvml

    found: list[tuple[float, str, int]] = []
    ended = threading.Event()

    def collect() -> None:
        events = nvml.nvmlEventSetCreate()
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlDeviceGetSupportedEventTypes(handle), events)
        while not ended.is_set():
            with contextlib.suppress(nvml.NVMLError_Timeout):
                event = nvml.nvmlEventSetWait_v2(events, _EVENT_WAIT_MS)
                found.append((time.time(), hex(event.eventType), event.eventData))
        nvml.nvmlEventSetFree(events)

    nvml.nvmlInit()
    thread = threading.Thread(target=collect, name="nvml events")
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        nvml.nvmlShutdown()
