"""What the commands of the pages are run against: the fixtures of the commands' own tests."""

from tests.commands.scan.conftest import machine, nvml_library
from tests.unit.app.test_device_routes import counter
from tests.unit.cli.conftest import cluster, empty_cluster, team

__all__ = ["cluster", "counter", "empty_cluster", "machine", "nvml_library", "team"]
