"""The worker's messages round trip; anything else is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.health.gpu.readings import Vital, Vitals
from kubemend.agent.model.devices import DeviceId, DevicePartition, Gpu, PciAddress
from kubemend.agent.sources.nvml import protocol

uuids = st.text(min_size=1, max_size=20).map(DeviceId)
small = st.integers(0, 2**32)
pcis = st.builds(PciAddress, domain=small, bus=small, device=small, function=small)
parts = st.builds(DevicePartition, uuid=uuids, gpu_instance=small, compute_instance=small)
gpus = st.builds(
    Gpu,
    uuid=uuids,
    pci=pcis,
    index=small,
    minor=st.none() | small,
    name=st.text(),
    partitions=st.lists(parts).map(tuple),
)
conditions = st.sampled_from(protocol.Condition)
readings = st.dictionaries(st.tuples(st.sampled_from(Vital), st.integers(0, 35)), st.integers(-(2**63), 2**64))
vitals = st.builds(Vitals, values=readings, errors=readings, full=st.booleans())
slots = st.builds(
    protocol.Slot,
    index=small,
    condition=conditions,
    gpu=st.none() | gpus,
    recovery_action=st.none() | small,
    vitals=st.none() | vitals,
)
uses = st.builds(protocol.ProcessUse, pid=small, used=st.none() | small)
answers = st.builds(
    protocol.DeviceAnswer,
    uuid=uuids,
    condition=conditions,
    memory_used=st.none() | small,
    processes=st.none() | st.lists(uses).map(tuple),
)
messages = st.one_of(
    st.builds(protocol.Beat, call=st.none() | st.text()),
    st.just(protocol.DriverAbsent()),
    st.builds(protocol.Ended, reason=st.sampled_from(protocol.EndReason), detail=st.text()),
    st.builds(
        protocol.Snapshot,
        without_events=st.lists(uuids).map(tuple),
        taken_at=st.floats(0, 1e10),
        clock=st.floats(0, 1e10),
        driver_version=st.text(),
        slots=st.lists(slots, max_size=3).map(tuple),
    ),
    st.builds(
        protocol.DeviceEvent,
        observed_at=st.floats(0, 1e10),
        kind=st.sampled_from(protocol.DeviceEventKind),
        uuid=uuids,
        pci=pcis,
    ),
    st.builds(
        protocol.XidEvent,
        observed_at=st.floats(0, 1e10),
        code=small,
        uuid=uuids,
        pci=pcis,
        gpu_instance=st.none() | small,
        compute_instance=st.none() | small,
    ),
    st.builds(protocol.DevicesAnswer, request=small, devices=st.lists(answers).map(tuple)),
    st.builds(protocol.Query, request=small, uuids=st.lists(uuids).map(tuple)),
)


@settings(deadline=None)
@given(message=messages)
def test_message_round_trips_as_one_line(message: protocol.Message) -> None:
    line = protocol.encode(message)

    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


@given(line=st.binary(max_size=60))
def test_invalid_line_is_refused(line: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(line)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"[]", id="not-an-object"),
        pytest.param(b'{"type":"Beat","surprise":1}', id="unknown-field"),
        pytest.param(b'{"type":"Ended","reason":"bored"}', id="unknown-reason"),
        pytest.param(b'{"type":"Snapshot"}', id="missing-fields"),
    ],
)
def test_message_with_wrong_content_is_refused(line: bytes) -> None:
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(line)
