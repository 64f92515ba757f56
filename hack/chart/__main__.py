"""Generate the Helm chart in charts/kubemend from the kustomizations. ``--check`` fails when it is stale."""

import sys
from typing import Final

from hack import generated
from hack.chart import content
from hack.devnode.packages import CHECKOUT

CHART: Final = CHECKOUT / "charts" / "kubemend"


def files() -> generated.Files:
    """Return the chart's files by path; files that do not belong to it are None."""
    made = {CHART / name: text for name, text in content.files().items()}
    return {**{path: None for path in CHART.rglob("*") if path.is_file()}, **made}


if __name__ == "__main__":
    sys.exit(generated.main("chart", files))
