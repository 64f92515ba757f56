"""How tests of the kernel's words read a line."""

from agent.health import catalog_file, kernel_lines
from agent.health.line_findings import Seen
from agent.health.pcie_lines import Below
from agent.model.findings import Finding

SEEN = Seen(observed_at=1_700_000_000.0, boot_seconds=12.5, key="kmsg:1:12500000")


def read(*lines: str, below: Below = kernel_lines.itself) -> list[Finding]:
    """Return what a fresh reader makes of the lines."""
    reader = kernel_lines.LineReader(catalog_file.builtin(), below=below)
    return [finding for line in lines for finding in reader.read(line, seen=SEEN)]


def read_one(line: str, *, below: Below = kernel_lines.itself) -> Finding:
    """Return the only finding in a line, which the agent would not pass over."""
    assert kernel_lines.may_matter(line.encode())
    assert kernel_lines.text_may_matter(line)
    (finding,) = read(line, below=below)
    return finding
