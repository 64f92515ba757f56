import pytest

from agent.model.workloads import ContainerState
from hack.devnode.kubelet import rules
from hack.devnode.kubelet.observed import Observed, Runtime
from hack.devnode.kubelet.spec import RESTART_ALL, Pod
from tests.unit.devnode.kubelet_builders import (
    CREATED,
    EXITED,
    RUNNING,
    UNKNOWN,
    container,
    pod,
    rule,
    runtime,
    seen,
    sidecar,
)


def decide(subject: Pod, shown: Runtime, *, probes: rules.ProbeResults | None = None) -> rules.Actions:
    return rules.compute_actions(pod=subject, runtime=shown, probes=probes or rules.ProbeResults(), restart_all=False)


@pytest.mark.parametrize(
    ("policy", "exit_code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_pod_policy_decides_over_an_exit(policy: str, exit_code: int, again: bool) -> None:
    actions = decide(pod(container("main"), policy=policy), runtime(seen("main", EXITED, exit_code=exit_code)))
    assert actions.start_mains == (("main",) if again else ())
    assert actions.kill_pod is not again


@pytest.mark.parametrize(
    ("rules_", "exit_code", "again"),
    [
        pytest.param([rule("Restart", 7)], 7, True, id="matching-rule-restarts"),
        pytest.param([rule("Restart", 7)], 8, False, id="no-match-falls-back-to-the-containers-policy"),
        pytest.param([rule("Restart", 7, operator="NotIn")], 8, True, id="not-in-matches-the-others"),
        pytest.param([rule(RESTART_ALL, 137)], 137, True, id="restart-all-is-a-restart-too"),
        pytest.param([rule("Restart", 7, operator="Like")], 7, False, id="unknown-operator-matches-nothing"),
    ],
)
def test_container_rules_go_before_the_pods_policy(
    rules_: list[dict[str, object]], exit_code: int, again: bool
) -> None:
    subject = pod(container("main", restartPolicy="Never", restartPolicyRules=rules_), policy="Always")
    (main,) = subject.mains
    assert rules.restarts_after(exit_code, container=main, pod=subject) is again


@pytest.mark.parametrize("state", [CREATED, UNKNOWN])
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_newest_container_that_never_ran_is_started_again_whatever_the_policy(
    state: ContainerState, policy: str
) -> None:
    shown = runtime(seen("main", RUNNING, attempt=0), seen("main", state, attempt=1))
    actions = decide(pod(container("main"), policy=policy), shown)
    assert actions.start_mains == ("main",)
    assert [kill.id for kill in actions.kills] == (["main-1"] if state is UNKNOWN else [])


def test_a_running_duplicate_of_an_older_attempt_is_left_alone() -> None:
    shown = runtime(seen("main", RUNNING, attempt=0), seen("main", RUNNING, attempt=1))
    assert decide(pod(container("main")), shown) == rules.Actions(sandbox_id="s-0")


def test_an_exited_container_newer_than_the_running_one_is_what_counts() -> None:
    shown = runtime(seen("main", RUNNING, attempt=0), seen("main", EXITED, attempt=1, exit_code=1))
    assert decide(pod(container("main")), shown).start_mains == ("main",)


def test_another_hash_kills_and_restarts_even_under_never() -> None:
    shown = runtime(seen("main", RUNNING, hash="1"))
    actions = decide(pod(container("main"), policy="Never"), shown)
    assert [kill.id for kill in actions.kills] == ["main-0"]
    assert actions.start_mains == ("main",)


def test_a_missing_container_is_started_while_another_one_runs_even_under_never() -> None:
    subject = pod(container("main"), container("other"), policy="Never")
    assert decide(subject, runtime(seen("other", RUNNING))).start_mains == ("main",)


def test_nothing_is_started_in_a_pod_that_is_being_deleted() -> None:
    subject = pod(container("main"), deleting=True)
    assert decide(subject, runtime(seen("main", EXITED, exit_code=1))).start_mains == ()


class TestSandbox:
    def test_a_new_pod_gets_a_sandbox_and_its_first_init_container(self) -> None:
        actions = decide(pod(container("main"), inits=[container("init")]), Runtime())
        assert (actions.create_sandbox, actions.start_inits, actions.start_mains) == (True, ("init",), ())

    def test_a_dead_sandbox_starts_everything_anew(self) -> None:
        actions = decide(pod(container("main")), runtime(seen("main", EXITED), ready=False))
        assert (actions.kill_pod, actions.create_sandbox, actions.sandbox_attempt) == (True, True, 1)
        assert actions.start_mains == ("main",)

    def test_a_never_pod_that_has_run_gets_no_second_sandbox(self) -> None:
        actions = decide(pod(container("main"), policy="Never"), runtime(seen("main", EXITED), ready=False))
        assert (actions.kill_pod, actions.create_sandbox) == (True, False)

    def test_a_sandbox_without_an_address_is_replaced(self) -> None:
        assert decide(pod(container("main")), runtime(seen("main", RUNNING), ip="")).create_sandbox


class TestInitContainers:
    inits = (container("a"), container("b"))

    @pytest.mark.parametrize(
        ("shown", "expected"),
        [
            pytest.param([], ("a",), id="nothing-yet"),
            pytest.param([seen("a", RUNNING)], (), id="first-runs"),
            pytest.param([seen("a", EXITED)], ("b",), id="first-is-done"),
            pytest.param([seen("a", EXITED, exit_code=1)], ("a",), id="first-failed"),
            pytest.param([seen("a", CREATED)], ("a",), id="first-was-never-started"),
            pytest.param([seen("b", EXITED, exit_code=1)], ("b",), id="trace-of-the-first-was-collected"),
        ],
    )
    def test_the_last_trace_decides_what_comes_next(self, shown: list[Observed], expected: tuple[str, ...]) -> None:
        actions = decide(pod(container("main"), inits=self.inits), runtime(*shown))
        assert (actions.start_inits, actions.start_mains) == (expected, ())

    def test_the_last_one_done_starts_the_mains(self) -> None:
        actions = decide(pod(container("main"), inits=self.inits), runtime(seen("b", EXITED)))
        assert (actions.start_inits, actions.start_mains) == ((), ("main",))

    def test_one_that_failed_under_never_ends_the_pod(self) -> None:
        subject = pod(container("main"), inits=self.inits, policy="Never")
        actions = decide(subject, runtime(seen("a", EXITED, exit_code=1)))
        assert (actions.kill_pod, actions.start_inits) == (True, ())

    def test_removed_ones_do_not_run_again_while_a_main_runs(self) -> None:
        actions = decide(pod(container("main"), inits=self.inits), runtime(seen("main", RUNNING)))
        assert actions == rules.Actions(sandbox_id="s-0")

    def test_all_removed_runs_them_again(self) -> None:
        assert decide(pod(container("main"), inits=self.inits), runtime()).start_inits == ("a",)


class TestSidecars:
    probed = sidecar("side", startupProbe={"exec": {"command": ["true"]}})

    @pytest.mark.parametrize(
        ("started", "mains"),
        [pytest.param(None, (), id="not-probed-yet"), pytest.param(True, ("main",), id="started")],
    )
    def test_the_mains_wait_for_the_startup_probe(self, started: bool | None, mains: tuple[str, ...]) -> None:
        probes = rules.ProbeResults(startup={} if started is None else {"side-0": started})
        actions = decide(pod(container("main"), inits=[self.probed]), runtime(seen("side", RUNNING)), probes=probes)
        assert (actions.start_inits, actions.start_mains) == ((), mains)

    def test_a_failed_startup_probe_replaces_it(self) -> None:
        probes = rules.ProbeResults(startup={"side-0": False})
        actions = decide(pod(container("main"), inits=[self.probed]), runtime(seen("side", RUNNING)), probes=probes)
        assert ([kill.id for kill in actions.kills], actions.start_inits) == (["side-0"], ("side",))

    def test_one_that_exited_is_restarted_beside_the_running_main(self) -> None:
        subject = pod(container("main"), inits=[sidecar("side")], policy="Never")
        actions = decide(subject, runtime(seen("side", EXITED), seen("main", RUNNING)))
        assert (actions.start_inits, actions.start_mains, actions.kill_pod) == (("side",), (), False)

    def test_they_do_not_keep_a_finished_pod_alive(self) -> None:
        subject = pod(container("main"), inits=[sidecar("side")], policy="Never")
        actions = decide(subject, runtime(seen("side", RUNNING), seen("main", EXITED)))
        assert (actions.kill_pod, actions.start_inits) == (True, ())


class TestRestartAll:
    subject = pod(
        container("main", restartPolicy="Never", restartPolicyRules=[rule(RESTART_ALL, 137)]),
        container("other"),
        inits=[container("init")],
        policy="Never",
    )

    def test_the_exit_asks_for_it(self) -> None:
        shown = runtime(seen("main", EXITED, exit_code=137), seen("other", RUNNING))
        assert rules.wants_restart_all(pod=self.subject, runtime=shown, reported_exits={})

    def test_another_exit_does_not(self) -> None:
        shown = runtime(seen("main", EXITED, exit_code=1), seen("other", RUNNING))
        assert not rules.wants_restart_all(pod=self.subject, runtime=shown, reported_exits={})

    def test_everything_is_removed_and_the_one_that_asked_comes_last(self) -> None:
        shown = runtime(seen("init", EXITED), seen("main", EXITED, exit_code=137), seen("other", RUNNING))
        actions = rules.compute_actions(pod=self.subject, runtime=shown, probes=rules.ProbeResults(), restart_all=True)
        assert [item.id for item in actions.reset] == ["other-0", "init-0", "main-0"]
        assert (actions.start_inits, actions.start_mains, actions.kill_pod) == ((), (), False)
