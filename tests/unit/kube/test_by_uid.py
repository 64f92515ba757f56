"""An object by UID, and no other that has taken its name."""

import pytest

from kubemend.common.kube import by_uid, errors
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected


async def test_existing_object_is_returned(tenant: Tenant) -> None:
    async with connected(tenant) as api:
        made = await api.create(tenant.of("configmaps"), {"metadata": {"name": "a"}})
        assert await by_uid.get(api, f"{tenant.of('configmaps')}/a", uid=made["metadata"]["uid"]) == made


async def test_deleted_or_replaced_object_is_not_returned(tenant: Tenant) -> None:
    async with connected(tenant) as api:
        former = await api.create(tenant.of("configmaps"), {"metadata": {"name": "a"}})
        await api.delete(f"{tenant.of('configmaps')}/a")
        assert await by_uid.get(api, f"{tenant.of('configmaps')}/a", uid=former["metadata"]["uid"]) is None
        await api.create(tenant.of("configmaps"), {"metadata": {"name": "a"}})
        assert await by_uid.get(api, f"{tenant.of('configmaps')}/a", uid=former["metadata"]["uid"]) is None


async def test_error_does_not_count_as_absence(tenant: Tenant) -> None:
    async with connected(tenant) as api:
        tenant.server.fail_next(1, status=403, method="GET", path="/configmaps")
        with pytest.raises(errors.ForbiddenError):
            await by_uid.get(api, f"{tenant.of('configmaps')}/a", uid="uid")
