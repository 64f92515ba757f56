"""The containers of a pod that restarts apply to."""

from typing import Any

import pytest

from kubemend.common import targets
from kubemend.common.targets import Candidate

TRAINER = Candidate("trainer", is_main=True, holds_devices=True)
LOGGER = Candidate("logger", is_main=True)
EXPORTER = Candidate("exporter", is_main=False, holds_devices=True)


def test_named_containers_are_the_targets() -> None:
    assert targets.of([TRAINER, LOGGER, EXPORTER], named={"logger", "exporter"}) == {"logger", "exporter"}


def test_default_targets_are_main_containers_with_devices() -> None:
    assert targets.of([TRAINER, LOGGER, EXPORTER], named=()) == {"trainer"}


def test_without_devices_all_main_containers_are_targets() -> None:
    assert targets.of([LOGGER, Candidate("other", is_main=True), EXPORTER], named=()) == {"logger", "other"}


def test_names_are_read_with_commas_between_them() -> None:
    assert targets.named(" trainer,, logger ") == {"trainer", "logger"}


@pytest.mark.parametrize(
    ("resources", "holds"),
    [
        pytest.param(None, False, id="none"),
        pytest.param({"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}, False, id="native"),
        pytest.param({"limits": {"attachable.kubernetes.io/volumes": "1"}}, False, id="native-with-a-domain"),
        pytest.param({"limits": {"nvidia.com/gpu": "8"}}, True, id="a-plugins"),
        pytest.param({"limits": {"nvidia.com/gpu": "0"}}, False, id="none-of-them"),
        pytest.param({"requests": {"amd.com/gpu": 1}}, True, id="another-vendors"),
        pytest.param({"claims": [{"name": "gpus"}]}, True, id="a-claim"),
    ],
)
def test_container_holds_devices_by_its_requests(resources: dict[str, Any] | None, *, holds: bool) -> None:
    assert targets.holds_devices({"name": "trainer", "resources": resources}) is holds
