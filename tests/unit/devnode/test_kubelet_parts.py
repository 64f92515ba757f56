from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.devnode.kubelet import cleanup, config, devices, environment, hashing, quantities
from hack.devnode.kubelet.backoff import FORGOTTEN_AFTER, CrashLoopBackOff
from hack.devnode.kubelet.spec import Container
from tests.unit.devnode.kubelet_builders import CREATED, EXITED, RUNNING, container, pod, runtime, seen


def test_the_hash_is_the_one_that_kubelets_own_test_pins() -> None:
    parsed = Container.parse({"name": "test_container", "image": "foo/image:v1"}, init=False)
    assert hashing.container_hash(parsed) == "8e45cbd0"


class TestBackoff:
    def test_first_restart_is_free_then_it_doubles_up_to_the_limit(self) -> None:
        backoff, waits = CrashLoopBackOff(first=10, limit=35), []
        for _ in range(4):
            waits.append(backoff.remaining("k", finished_at=100, now=100))
            backoff.started("k", finished_at=100, now=100)
        assert waits == [0, 10, 20, 35]

    def test_waiting_counts_from_the_exit(self) -> None:
        backoff = CrashLoopBackOff()
        backoff.started("k", finished_at=0, now=0)
        assert backoff.remaining("k", finished_at=5, now=12) == 3
        assert backoff.remaining("k", finished_at=5, now=15) == 0

    def test_a_long_life_starts_over(self) -> None:
        backoff = CrashLoopBackOff()
        for _ in range(3):
            backoff.started("k", finished_at=0, now=0)
        late = FORGOTTEN_AFTER + 1
        assert backoff.remaining("k", finished_at=late, now=late) == 0
        backoff.started("k", finished_at=late, now=late)
        assert backoff.current("k") == 10

    @given(st.lists(st.floats(min_value=0, max_value=300), max_size=20))
    def test_the_wait_stays_within_its_bounds(self, gaps: list[float]) -> None:
        backoff, now = CrashLoopBackOff(first=1, limit=60), 0.0
        for gap in gaps:
            now += gap
            assert 0 <= backoff.remaining("k", finished_at=now, now=now) <= 60
            backoff.started("k", finished_at=now, now=now)
            assert 1 <= backoff.current("k") <= 60


class TestEnvironment:
    def test_references_see_what_came_before_them(self) -> None:
        env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)$$(A)"}, {"name": "C", "value": "3"}]
        subject = pod(container("main", env=env))
        made = environment.build(subject.mains[0], pod=subject, pod_ip="", host_ip="", extra={"D": "4"})
        assert made == {"A": "1", "B": "1$(C)$(A)", "C": "3", "D": "4"}

    def test_what_is_not_supported_is_named(self) -> None:
        env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
        subject = pod(container("main", env=env))
        with pytest.raises(environment.UnsupportedFieldError, match=r"env A: secretKeyRef"):
            environment.build(subject.mains[0], pod=subject, pod_ip="", host_ip="", extra={})


@pytest.mark.parametrize(("text", "value"), [("500m", "0.5"), ("64Mi", "67108864"), ("2", "2"), ("1.5k", "1500.0")])
def test_quantities(text: str, value: str) -> None:
    assert str(quantities.parse(text).normalize()) == str(quantities.parse(value).normalize())


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": 1}}, "BestEffort"),
        ({"requests": {"cpu": 1}}, "Burstable"),
        ({"limits": {"cpu": 1, "memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_qos_class(resources: dict[str, object], qos: str) -> None:
    assert quantities.qos_class([container("main", resources=resources)]) == qos


def test_a_containers_annotations_are_kubelets() -> None:
    hook = {"exec": {"command": ["x"]}}
    subject = pod(container("main", lifecycle={"preStop": hook}), terminationGracePeriodSeconds=7)
    made = config.container_annotations(subject.mains[0], pod=subject, attempt=3)
    assert made == {
        "io.kubernetes.container.hash": hashing.container_hash(subject.mains[0]),
        "io.kubernetes.container.restartCount": "3",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["x"]}}',
        "io.kubernetes.pod.terminationGracePeriod": "7",
    }


class TestDevices:
    def manager(self, directory: Path) -> devices.DeviceManager:
        return devices.DeviceManager(resource="r", ids=("a", "b", "c"), directory=directory)

    def test_an_allocation_is_made_once_and_survives_the_process(self, tmp_path: Path) -> None:
        subject = pod(container("main", resources={"limits": {"r": "2"}}))
        self.manager(tmp_path).admit(subject)
        again = self.manager(tmp_path)
        again.admit(subject)
        assert [held.ids for held in again.held()] == [("a", "b")]

    def test_too_many_are_refused_and_nothing_is_kept(self, tmp_path: Path) -> None:
        manager = self.manager(tmp_path)
        with pytest.raises(devices.NotEnoughDevicesError):
            manager.admit(
                pod(container("x", resources={"limits": {"r": 2}}), container("y", resources={"limits": {"r": 2}}))
            )
        assert manager.held() == ()

    def test_init_containers_hand_their_devices_on(self, tmp_path: Path) -> None:
        wants = {"resources": {"limits": {"r": 2}}}
        manager = self.manager(tmp_path)
        manager.admit(pod(container("main", **wants), inits=[container("init", **wants)]))
        assert {held.container: held.ids for held in manager.held()} == {"init": ("a", "b"), "main": ("a", "b")}

    def test_freed_devices_are_given_out_again(self, tmp_path: Path) -> None:
        subject = pod(container("main", resources={"limits": {"r": 3}}))
        manager = self.manager(tmp_path)
        manager.admit(subject)
        manager.free(subject.uid)
        assert manager.held() == ()
        manager.admit(subject)


class TestGarbage:
    shown = runtime(
        seen("main", EXITED, attempt=0),
        seen("main", EXITED, attempt=1),
        seen("main", RUNNING, attempt=2),
        seen("main", CREATED, attempt=3),
    )

    def test_after_an_exit_one_dead_container_stays(self) -> None:
        assert [item.id for item in cleanup.surplus(self.shown, names=["main"])] == ["main-0"]

    def test_the_minute_timer_counts_a_created_one_among_the_dead(self) -> None:
        assert [item.id for item in cleanup.evictable(self.shown)] == ["main-1", "main-0"]
