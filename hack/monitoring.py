"""Write the pages on metrics and logs, and the addresses of alerts' runbooks. ``--check`` only checks them."""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from hack import monitoring_logs, monitoring_metrics

ROOT: Final = Path(__file__).parent.parent
COMPONENT: Final = Path("daemonset/components/monitoring")
RULES: Final = COMPONENT / "rules.yaml"
RUNBOOKS: Final = "docs/troubleshooting.md"


def pages(runbooks: str = RUNBOOKS) -> Mapping[Path, str]:
    """Return the generated files by path in the repository. ``runbooks`` is the address of troubleshooting.md."""
    return {
        RULES: re.sub(r"(?<= runbook_url: )[^#\n]*(?=#)", lambda _: runbooks, (ROOT / RULES).read_text("utf-8")),
        Path("docs/metrics.md"): monitoring_metrics.render(monitoring_metrics.exported()),
        Path("docs/logs.md"): monitoring_logs.render(monitoring_logs.events(ROOT)),
    }


def rules(runbooks: str = RUNBOOKS) -> str:
    """Return the rules alone, as promtool and a Prometheus without the operator read them."""
    return yaml.safe_dump(yaml.safe_load(pages(runbooks)[RULES])["spec"], sort_keys=False, width=120)


def main() -> int:
    """Write everything, or check it. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not current")
    parser.add_argument("--rules", action="store_true", help="print the rules alone, as promtool reads them")
    parser.add_argument("--runbooks", default=RUNBOOKS, metavar="URL", help="address of docs/troubleshooting.md")
    wanted = parser.parse_args()
    if wanted.rules:
        print(rules(wanted.runbooks), end="")
        return 0
    stale = []
    for path, text in pages(wanted.runbooks).items():
        there = ROOT / path
        if not wanted.check:
            there.write_text(text, "utf-8")
        elif not there.exists() or there.read_text("utf-8") != text:
            stale.append(str(path))
    if stale:
        print(f"{', '.join(stale)}: not current; run python -m hack.monitoring", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
