"""Parse kernel log text into findings. Pure; the only state comes from earlier lines of the log."""

import re
from collections.abc import Callable
from dataclasses import replace

from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.kmsg import provenance
from kubemend.agent.health.kmsg.gpu_lines import GpuLines
from kubemend.agent.health.kmsg.line_findings import Seen
from kubemend.agent.health.kmsg.nic_lines import NicLines
from kubemend.agent.health.kmsg.pcie_lines import Below, PcieLines
from kubemend.agent.health.kmsg.process_lines import ProcessLines
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import Finding

_NVIDIA = ("NVRM", "SXid", "fallen off", "PCI ID:", "installed in")
"""The last three occur in the split lines of ``grammar.off_bus``."""

_PCIE = ("AER: ", "PCIe Bus Error", "aer_uncor", "DPC")
_NIC = ("mlx5_core", "NETDEV WATCHDOG: CPU")
_PROCESS = ("oom-kill:", "ut of memory", "soft lockup", "blocked ")

MARKERS = (*_NVIDIA, *_PCIE, *_NIC, *_PROCESS)
"""Every grammar requires one of these."""

_IN_TEXT = re.compile("|".join(map(re.escape, MARKERS)))
_IN_RAW = re.compile("|".join(map(re.escape, MARKERS)).encode())


def may_matter(raw: bytes) -> bool:
    """Cheap test for the hot path: False only for lines that no grammar matches."""
    return _IN_RAW.search(raw) is not None


def text_may_matter(text: str) -> bool:
    """``may_matter`` for a line as text."""
    return _IN_TEXT.search(text) is not None


def itself(address: PciAddress) -> tuple[PciAddress, ...]:
    """``Below`` without knowledge of the PCI tree: a line concerns the address that it names."""
    return (address,)


class LineReader:
    """Parses kernel text line by line. Most lines give no finding; none raises."""

    def __init__(self, catalog: Catalog, *, below: Below = itself) -> None:
        """Create the reader. ``below`` maps the port that reports a PCIe error to the devices that it hit."""
        self._readers: tuple[Callable[..., tuple[Finding, ...]], ...] = (
            GpuLines(catalog).read,
            PcieLines(catalog, below=below).read,
            NicLines(catalog).read,
            ProcessLines(catalog).read,
        )

    def read(self, text: str, *, seen: Seen) -> tuple[Finding, ...]:
        """Return the findings in a line, usually none. Each has a unique key."""
        if provenance.is_of_packet(text):
            return ()
        for read in self._readers:
            if findings := read(text, seen=seen):
                first, *others = findings
                return (first, *(replace(each, key=f"{each.key}#{n}") for n, each in enumerate(others, 2)))
        return ()
