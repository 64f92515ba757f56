"""Generate the Helm chart in charts/kubemend from the kustomizations. ``--check`` fails when it is stale."""

import argparse
import sys
from pathlib import Path
from typing import Final

from hack.chart import content
from hack.devnode.packages import CHECKOUT

CHART: Final = CHECKOUT / "charts" / "kubemend"


def stale(chart: Path, files: dict[str, str]) -> list[str]:
    """Return the chart's files that are missing, differ, or do not belong to it."""
    present = {str(path.relative_to(chart)) for path in chart.rglob("*") if path.is_file()}
    differ = {name for name in present & set(files) if (chart / name).read_text("utf-8") != files[name]}
    return sorted(present ^ set(files) | differ)


def main() -> int:
    """Write the chart, or check it. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when charts/kubemend is not current")
    checks = parser.parse_args().check
    files = content.files()
    found = stale(CHART, files)
    if checks and found:
        print(f"charts/kubemend is not current ({found[0]}): run python -m hack.chart", file=sys.stderr)
        return 1
    for name in found if not checks else ():
        if name in files:
            (CHART / name).parent.mkdir(parents=True, exist_ok=True)
            (CHART / name).write_text(files[name], "utf-8")
        else:
            (CHART / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
