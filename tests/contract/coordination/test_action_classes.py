"""The action classes that agents report are those that the controller decides by."""

import pytest

from kubemend.agent.model.actions import ActionClass
from kubemend.controller.decisions import facts, table
from tests.unit.controller import builders


@pytest.mark.parametrize("action", ActionClass)
def test_controller_recreates_a_member_whose_device_needs_more_than_the_driver(action: ActionClass) -> None:
    more = action.severity > ActionClass.ASK_DRIVER.severity
    assert facts.needs_recreation(builders.fault(action_class=action.value)) is more


def test_controller_waits_for_the_driver_where_the_agent_does() -> None:
    assert ActionClass.ASK_DRIVER.value == table.ASK_DRIVER
