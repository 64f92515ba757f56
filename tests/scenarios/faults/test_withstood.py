"""Nothing is lost when the product's dependencies fail: the short form of ``python -m bench.faults``."""

from collections.abc import Mapping
from typing import Any

import pytest

from bench.faults import suite

pytestmark = [pytest.mark.long, pytest.mark.devnode, pytest.mark.timeout(960)]


@pytest.mark.parametrize("name", [fault.name for fault in suite.chosen((), short=True)])
def test_fault_loses_nothing(printed: Mapping[str, Any], name: str) -> None:
    (reported,) = [each for each in printed["faults"] if each["fault"] == name]
    assert reported["lost"] == [], printed["stderr"]
    if "not_tried" in reported:
        pytest.skip(reported["not_tried"])
    assert reported["tried"]
    assert reported["checks"] > 0


def test_exit_status_agrees_with_the_results(printed: Mapping[str, Any]) -> None:
    lost = sum(len(each["lost"]) for each in printed["faults"])
    tried = [each for each in printed["faults"] if "not_tried" not in each]
    assert (printed["faults_tried"], printed["lost"]) == (len(tried), lost)
    assert len(printed["faults"]) == len(suite.chosen((), short=True))
    assert printed["status"] == (1 if lost else 0)
