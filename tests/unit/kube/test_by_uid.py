"""One object, and no other that has come to have its name."""

from pathlib import Path

import pytest

from common.kube import by_uid, errors, paths
from tests.unit.reporters.running import connected

CONFIG_MAPS = paths.collection("configmaps", namespace="default")


async def test_it_is_returned_as_long_as_it_is_there(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, api):
        made = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
        assert await by_uid.get(api, f"{CONFIG_MAPS}/a", uid=made["metadata"]["uid"]) == made


async def test_neither_an_object_that_is_gone_nor_its_successor_is_it(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, api):
        former = await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
        await api.delete(f"{CONFIG_MAPS}/a")
        assert await by_uid.get(api, f"{CONFIG_MAPS}/a", uid=former["metadata"]["uid"]) is None
        await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
        assert await by_uid.get(api, f"{CONFIG_MAPS}/a", uid=former["metadata"]["uid"]) is None


async def test_what_cannot_be_told_is_no_absence(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, api):
        server.handler.faults.fail_next(1, status=403, method="GET", path="/configmaps")
        with pytest.raises(errors.ForbiddenError):
            await by_uid.get(api, f"{CONFIG_MAPS}/a", uid="uid")
