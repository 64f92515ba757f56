"""The parts of NVML's ABI that kubemend's code relies on, queried through pynvml alone. Reads only."""

import json
import subprocess
import sys
from typing import Any

import pytest

CLOCKS_CHANGED = 0x10

PROBE = """
import json, pynvml as nvml
from kubemend.agent.sources.nvml.events import WANTED

def ask(function, *args):
    try:
        return getattr(nvml, function)(*args)
    except nvml.NVMLError as error:
        return f"error {error.value}"

nvml.nvmlInit()
found = {"count": nvml.nvmlDeviceGetCount(), "driver": nvml.nvmlSystemGetDriverVersion(), "gpus": []}
events, all_events = nvml.nvmlEventSetCreate(), nvml.nvmlEventSetCreate()
for index in range(found["count"]):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, pci = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetPciInfo(handle)
    memory, supported = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetSupportedEventTypes(handle)
    fields = nvml.nvmlDeviceGetFieldValues(handle, [230, 0xFFFF])
    found["gpus"].append({
        "uuid": uuid, "bus_id": pci.busId, "numbers": [pci.domain, pci.bus, pci.device],
        "same_by_uuid": nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid,
        "same_by_bus_id": nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByPciBusId(pci.busId)) == uuid,
        "index": nvml.nvmlDeviceGetIndex(handle), "memory": [memory.total, memory.used],
        "xid_events": bool(supported & nvml.nvmlEventTypeXidCriticalError),
        "register": ask("nvmlDeviceRegisterEvents", handle, supported & WANTED, events),
        "register_all": ask("nvmlDeviceRegisterEvents", handle, supported, all_events),
        "unknown_field": fields[1].nvmlReturn,
    })
found["wait"] = ask("nvmlEventSetWait", events, 500)
first = ask("nvmlEventSetWait", all_events, 500)
found["wait_for_all"] = first if isinstance(first, str) else first.eventType
found["free"] = ask("nvmlEventSetFree", events)
found["no_such_uuid"] = ask("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-000000000000")
found["no_such_index"] = ask("nvmlDeviceGetHandleByIndex", found["count"])
nvml.nvmlShutdown()
found["after_shutdown"] = ask("nvmlDeviceGetCount")
print(json.dumps(found))
"""


@pytest.fixture
def found(nvml_env: dict[str, str]) -> dict[str, Any]:
    """What the probe saw."""
    output = subprocess.check_output([sys.executable, "-c", PROBE], env=nvml_env, timeout=60)
    read: dict[str, Any] = json.loads(output)
    return read


def test_every_gpu_has_one_identity_however_it_is_looked_up(found: dict[str, Any]) -> None:
    assert found["count"] == len({gpu["uuid"] for gpu in found["gpus"]})
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(found["count"]))
    for gpu in found["gpus"]:
        domain, bus, device = gpu["numbers"]
        assert gpu["uuid"].startswith("GPU-")
        assert gpu["bus_id"].upper() == f"{domain:08X}:{bus:02X}:{device:02X}.0"
        assert gpu["same_by_uuid"]
        assert gpu["same_by_bus_id"]


def test_memory_in_use_is_within_the_total(found: dict[str, Any]) -> None:
    assert all(0 <= used <= total for used, total in ((gpu["memory"][1], gpu["memory"][0]) for gpu in found["gpus"]))


def test_waiting_for_events_on_a_quiet_node_times_out(found: dict[str, Any]) -> None:
    assert all(gpu["xid_events"] and gpu["register"] is None for gpu in found["gpus"])
    assert found["wait"] == "error 10"
    assert found["free"] is None


def test_quiet_node_has_no_events_but_changes_of_clocks(found: dict[str, Any]) -> None:
    assert all(gpu["register_all"] is None for gpu in found["gpus"])
    assert found["wait_for_all"] in (CLOCKS_CHANGED, "error 10")


def test_errors_have_the_codes_that_the_reader_distinguishes(found: dict[str, Any]) -> None:
    assert found["no_such_uuid"] == "error 6"
    assert found["no_such_index"] == "error 2"
    assert found["after_shutdown"] == "error 1"
    assert all(gpu["unknown_field"] in (2, 3) for gpu in found["gpus"])
