"""From the kernel's words to findings. Pure; it remembers only what the log itself said before."""

import re
from collections.abc import Callable
from dataclasses import replace

from agent.health import provenance
from agent.health.catalog import Catalog
from agent.health.gpu_lines import GpuLines
from agent.health.line_findings import Seen
from agent.health.nic_lines import NicLines
from agent.health.pcie_lines import Below, PcieLines
from agent.health.process_lines import ProcessLines
from agent.model.devices import PciAddress
from agent.model.findings import Finding

_NVIDIA = ("NVRM", "SXid", "fallen off", "PCI ID:", "installed in")
"""The last three are in the split lines of ``grammar.off_bus``."""

_PCIE = ("AER: ", "PCIe Bus Error", "aer_uncor", "DPC")
_NIC = ("mlx5_core", "NETDEV WATCHDOG: CPU")
_PROCESS = ("oom-kill:", "ut of memory", "soft lockup", "blocked ")

WORDS = (*_NVIDIA, *_PCIE, *_NIC, *_PROCESS)
"""No grammar takes a line without one of these."""

_IN_TEXT = re.compile("|".join(map(re.escape, WORDS)))
_IN_RAW = re.compile("|".join(map(re.escape, WORDS)).encode())


def may_matter(raw: bytes) -> bool:
    """Cheap test for the hot path: False only for lines that no grammar here would take."""
    return _IN_RAW.search(raw) is not None


def text_may_matter(text: str) -> bool:
    """``may_matter`` for a line as text."""
    return _IN_TEXT.search(text) is not None


def itself(address: PciAddress) -> tuple[PciAddress, ...]:
    """``Below`` for whoever does not know the PCI tree: a line is about the address that it names."""
    return (address,)


class LineReader:
    """Reads the kernel's words line by line. Most lines give nothing; none raises."""

    def __init__(self, catalog: Catalog, *, below: Below = itself) -> None:
        """Prepare the reader. ``below`` leads from the port that reports a PCIe error to the devices that it hit."""
        self._readers: tuple[Callable[..., tuple[Finding, ...]], ...] = (
            GpuLines(catalog).read,
            PcieLines(catalog, below=below).read,
            NicLines(catalog).read,
            ProcessLines(catalog).read,
        )

    def read(self, text: str, *, seen: Seen) -> tuple[Finding, ...]:
        """Return the findings that a line is: none for one that means nothing. Each has a key of its own."""
        if provenance.is_of_packet(text):
            return ()
        for read in self._readers:
            if findings := read(text, seen=seen):
                first, *others = findings
                return (first, *(replace(each, key=f"{each.key}#{n}") for n, each in enumerate(others, 2)))
        return ()
