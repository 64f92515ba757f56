"""Write the pages on metrics and logs, and the addresses of alerts' runbooks. ``--check`` only checks them."""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from hack import generated, monitoring_logs, monitoring_metrics

ROOT: Final = generated.ROOT
COMPONENT: Final = ROOT / "daemonset" / "components" / "monitoring"
RULES: Final = COMPONENT / "rules.yaml"
RUNBOOKS: Final = "docs/troubleshooting.md"


def pages(runbooks: str = RUNBOOKS) -> Mapping[Path, str]:
    """Return the generated files by path. ``runbooks`` is the address of troubleshooting.md."""
    return {
        RULES: _rules_file(runbooks),
        ROOT / "docs" / "metrics.md": monitoring_metrics.render(monitoring_metrics.exported()),
        ROOT / "docs" / "logs.md": monitoring_logs.render(monitoring_logs.events(ROOT)),
    }


def rules(runbooks: str = RUNBOOKS) -> str:
    """Return the rules alone, as promtool and a Prometheus without the operator read them."""
    return yaml.safe_dump(yaml.safe_load(_rules_file(runbooks))["spec"], sort_keys=False, width=120)


def _rules_file(runbooks: str) -> str:
    return re.sub(r"(?<= runbook_url: )[^#\n]*(?=#)", lambda _: runbooks, RULES.read_text("utf-8"))


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
    return generated.write("monitoring", pages(wanted.runbooks), check=wanted.check)


if __name__ == "__main__":
    sys.exit(main())
