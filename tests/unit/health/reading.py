"""How tests read a line of the kernel log."""

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.kmsg import line_reader
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.kmsg.line_reader import Below
from kubemend.agent.model.findings import Finding

SEEN = LineContext(observed_at=1_700_000_000.0, boot_seconds=12.5, key="kmsg:1:12500000")


def read(*lines: str, below: Below = line_reader.itself) -> list[Finding]:
    """Return the findings of a new reader in the lines."""
    reader = line_reader.LineReader(catalog_file.builtin(), below=below)
    return [finding for line in lines for finding in reader.read(line, seen=SEEN)]


def read_one(line: str, *, below: Below = line_reader.itself) -> Finding:
    """Return the only finding in a line, which the prefilter passes."""
    assert line_reader.may_matter(line.encode())
    assert line_reader.text_may_matter(line)
    (finding,) = read(line, below=below)
    return finding
