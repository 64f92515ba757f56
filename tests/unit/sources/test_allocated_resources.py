from kubemend.agent.model.workloads import ReportedHealth, ResourceHealth
from kubemend.agent.sources import allocated_resources


def test_every_container_is_read_in_a_stable_order() -> None:
    gpus = {
        "name": "nvidia.com/gpu",
        "resources": [
            {"resourceID": "GPU-b", "health": "Unhealthy", "message": "ECC"},
            {"resourceID": "GPU-a", "health": "Healthy"},
        ],
    }
    claim = {"name": "claim:c/gpu", "resources": [{"resourceID": "gpu.nvidia.com/n/gpu-0", "health": "Unknown"}]}
    status = {
        "initContainerStatuses": [{"name": "proxy", "allocatedResourcesStatus": [claim]}],
        "containerStatuses": [{"name": "main", "allocatedResourcesStatus": [gpus]}, {"name": "other"}],
    }
    assert allocated_resources.read(status) == (
        ResourceHealth("claim:c/gpu", "gpu.nvidia.com/n/gpu-0", ReportedHealth.UNKNOWN),
        ResourceHealth("nvidia.com/gpu", "GPU-a", ReportedHealth.HEALTHY),
        ResourceHealth("nvidia.com/gpu", "GPU-b", ReportedHealth.UNHEALTHY, "ECC"),
    )


def test_unknown_values_are_unknown_not_healthy() -> None:
    for health in ({"health": "PermanentlyUnhealthy"}, {"health": ""}, {}):
        resources = [{"resourceID": "GPU-a", **health}]
        status = {"containerStatuses": [{"allocatedResourcesStatus": [{"name": "r", "resources": resources}]}]}
        assert [item.health for item in allocated_resources.read(status)] == [ReportedHealth.UNKNOWN]


def test_status_without_resources_is_empty() -> None:
    assert allocated_resources.read({}) == ()
    assert allocated_resources.read({"containerStatuses": None}) == ()
    assert allocated_resources.read({"containerStatuses": [{"allocatedResourcesStatus": [{"name": "r"}]}]}) == ()
