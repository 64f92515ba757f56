"""A hub with its default rules."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.controller.hub.rig import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with Rig().running() as running:
        yield running
