"""Events about rounds, while some of them cannot be written."""

from kubemend.controller.restarts.events import ObjectRef, PendingEvent, RoundEventRecorder, event
from tests import eventually
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started


async def test_namespace_that_refuses_events_does_not_block_others(tenant: Tenant) -> None:
    async with connected(tenant) as api:
        tenant.server.fail_next(10_000, status=403, path="/namespaces/going/")
        recorder = RoundEventRecorder(api=api, report=lambda _: None)
        for namespace in ("going", tenant.namespace):
            recorder.record(ObjectRef("v1", "Pod", namespace, "a", "uid"), reason="RoundDone", message="all run")

        async def is_recorded() -> bool:
            return bool((await api.list(tenant.of("events"))).items)

        async with started(recorder):
            await eventually.true(is_recorded)


def test_message_has_no_control_characters() -> None:
    pod = ObjectRef("v1", "Pod", "train", "a", "uid")
    pending = PendingEvent(pod, "RoundBegun", "asked: \x1b[2Jnow\nand then", 0.0)

    assert event(pending)["message"] == "asked:  [2Jnow and then"
