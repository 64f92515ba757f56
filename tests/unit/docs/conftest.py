"""What the commands of the pages are run against: the fixtures of the commands' own tests."""

from tests.unit.app.test_device_routes import counter
from tests.unit.cli.conftest import cluster, empty_cluster, team
from tests.unit.scan.conftest import machine, nvml_library

__all__ = ["cluster", "counter", "empty_cluster", "machine", "nvml_library", "team"]
