"""A hub with its default rules."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.controller.hub.env import HubServiceEnv


@pytest.fixture
async def env() -> AsyncIterator[HubServiceEnv]:
    async with HubServiceEnv().running() as running:
        yield running
