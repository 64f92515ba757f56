"""When the condition of a pod's warm spares is published: changes of state at once, at most so many, never memory."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid, PodView, RestartPolicy
from kubemend.agent.reporters.spare_conditions import BURST, REFILL, SILENCE, SpareConditions
from kubemend.agent.restart import spares
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State
from kubemend.common import contained
from tests import virtual_time

POD: Final = PodRef("team", "train-0", PodUid("u0"))
TRAINER, HELPER = ContainerRef(POD, "trainer"), ContainerRef(POD, "helper")
NONE = Launcher(State.RUNNING, program=1)
IMPORTS = replace(NONE, spare=77)
READY = replace(IMPORTS, ready=True, spare_memory=1 << 30)
SILENT = LauncherUnavailable("no answer")


def view(ref: PodRef = POD, **changes: Any) -> PodView:
    view = PodView(ref=ref, phase="Running", restart_policy=RestartPolicy.ALWAYS, containers=())
    return replace(view, **changes)


@dataclass
class Env:
    """A node's pods, and the published conditions: seconds, pod and condition."""

    views: dict[PodUid, PodView] = field(default_factory=lambda: {POD.uid: view()})
    published: list[tuple[float, str, Condition]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spares = SpareConditions(pods=lambda: self.views, publish=self._publish)

    def _publish(self, pod: PodRef, condition: Condition) -> None:
        self.published.append((asyncio.get_running_loop().time(), pod.name, condition))

    @property
    def reasons(self) -> list[tuple[float, str]]:
        return [(at, condition.reason) for at, _, condition in self.published]


def timed(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test in virtual time; its first argument is the environment, pytest passes the others."""
    signature = inspect.signature(test)

    @functools.wraps(test)
    def run(**given: Any) -> None:
        async def work() -> None:
            await test(Env(), **given)

        virtual_time.run(work())

    _, *others = signature.parameters.values()
    run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return run


@timed
async def test_changes_of_state_are_published_at_once(env: Env) -> None:
    for state in (NONE, IMPORTS, READY):
        env.spares.show(TRAINER, state)
        await virtual_time.passes(1.0)
    assert env.reasons == [(0.0, "NotDue"), (1.0, "Importing"), (2.0, "Ready")]
    assert env.published[-1][2].message == "trainer: ready, 1.0 GiB"


@timed
async def test_memory_is_never_published_alone(env: Env) -> None:
    for number in range(100):
        env.spares.show(TRAINER, replace(READY, spare_memory=number << 30, program=number))
        await virtual_time.passes(60.0)
    assert env.reasons == [(0.0, "Ready")]
    env.spares.show(TRAINER, replace(IMPORTS, spare_memory=200 << 30))
    env.spares.show(TRAINER, replace(READY, spare_memory=200 << 30))
    assert env.published[-1][2].message == "trainer: ready, 200.0 GiB"


@timed
async def test_changes_without_end_are_published_up_to_the_allowance_and_then_the_newest(env: Env) -> None:
    for number in range(1000):
        env.spares.show(TRAINER, (NONE, IMPORTS)[number % 2])
    assert len(env.published) == BURST
    env.spares.show(TRAINER, READY)
    await virtual_time.passes(REFILL - 0.1)
    assert len(env.published) == BURST
    await virtual_time.passes(0.2)
    assert env.reasons[BURST:] == [(REFILL, "Ready")]
    for number in range(6000):
        env.spares.show(TRAINER, (NONE, IMPORTS)[number % 2])
        await virtual_time.passes(0.1)
    assert len(env.published) == BURST + 1 + 600 // REFILL


@timed
async def test_one_pods_changes_do_not_delay_anothers(env: Env) -> None:
    other = PodRef("team", "train-1", PodUid("u1"))
    env.views[other.uid] = view(other)
    for number in range(100):
        env.spares.show(TRAINER, (NONE, IMPORTS)[number % 2])
    env.spares.show(ContainerRef(other, "trainer"), READY)
    assert env.published[-1][1] == "train-1"


@timed
async def test_a_silent_launcher_is_published_only_if_it_stays_silent(env: Env) -> None:
    env.spares.show(TRAINER, SILENT)
    await virtual_time.passes(SILENCE / 2)
    env.spares.show(TRAINER, READY)
    await virtual_time.passes(SILENCE * 2)
    assert env.reasons == [(SILENCE / 2, "Ready")]
    env.spares.show(TRAINER, SILENT)
    await virtual_time.passes(SILENCE)
    assert env.reasons[1:] == [(SILENCE * 3.5, "LauncherSilent")]


@timed
async def test_a_container_that_is_replaced_is_published_with_its_new_launcher(env: Env) -> None:
    env.spares.show(TRAINER, READY)
    env.spares.show(TRAINER, None)
    await virtual_time.passes(1.0)
    env.spares.show(TRAINER, NONE)
    await virtual_time.passes(60.0)
    assert env.reasons == [(0.0, "Ready"), (1.0, "NotDue")]


@timed
async def test_a_container_that_does_not_come_back_makes_it_unknown(env: Env) -> None:
    env.spares.show(TRAINER, READY)
    env.spares.show(TRAINER, None)
    await virtual_time.passes(SILENCE)
    assert env.reasons == [(0.0, "Ready"), (SILENCE, "NotRunning")]
    env.spares.show(TRAINER, None)
    await virtual_time.passes(60.0)
    assert len(env.published) == 2


@timed
async def test_a_container_without_a_launcher_is_never_published(env: Env) -> None:
    env.spares.show(TRAINER, READY)
    env.spares.show(HELPER, None)
    env.spares.show(ContainerRef(PodRef("team", "plain", PodUid("u9")), "main"), None)
    await virtual_time.passes(60.0)
    assert env.reasons == [(0.0, "Ready")]


@timed
async def test_containers_of_a_pod_are_published_together(env: Env) -> None:
    env.spares.show(TRAINER, READY)
    env.spares.show(HELPER, NONE)
    assert env.published[-1][2].message == "helper: no spare is due yet; trainer: ready, 1.0 GiB"
    env.spares.show(HELPER, None)
    await virtual_time.passes(60.0)
    assert env.published[-1][2].message == "trainer: ready, 1.0 GiB"


ENDS = pytest.mark.parametrize("change", [{"deleting": True}, {"phase": "Succeeded"}], ids=["deleting", "over"])


@ENDS
@timed
async def test_a_pod_that_ends_is_not_written_to(env: Env, change: dict[str, Any]) -> None:
    env.spares.show(TRAINER, IMPORTS)
    env.views = {POD.uid: view(**change)}
    env.spares.show(TRAINER, NONE)
    env.spares.show(TRAINER, None)
    await virtual_time.passes(60.0)
    assert env.reasons == [(0.0, "Importing")]


@ENDS
@timed
async def test_a_pod_that_ends_does_not_keep_the_condition_true(env: Env, change: dict[str, Any]) -> None:
    env.spares.show(TRAINER, READY)
    env.views = {POD.uid: view(**change)}
    for state in (None, NONE, IMPORTS, None):
        env.spares.show(TRAINER, state)
    await virtual_time.passes(60.0)
    assert env.reasons == [(0.0, "Ready"), (0.0, "NotDue")]


@timed
async def test_a_pod_that_is_gone_is_not_written_to(env: Env) -> None:
    env.spares.show(TRAINER, READY)
    env.views = {}
    env.spares.show(TRAINER, NONE)
    env.spares.show(TRAINER, None)
    await virtual_time.passes(60.0)
    assert env.reasons == [(0.0, "Ready")]


@timed
async def test_silence_is_published_in_time_although_others_of_the_pod_change(env: Env) -> None:
    env.spares.show(TRAINER, READY)
    env.spares.show(TRAINER, None)
    for number in range(100):
        await virtual_time.passes(SILENCE / 2)
        env.spares.show(HELPER, LauncherUnavailable(f"silent for another reason, {number}"))
    assert env.reasons[:2] == [(0.0, "Ready"), (SILENCE, "LauncherSilent")]


@timed
async def test_what_a_previous_agent_published_does_not_stay_true(env: Env) -> None:
    env.views = {POD.uid: view(conditions=(spares.condition({"trainer": READY}),))}
    env.spares.adopt()
    await virtual_time.passes(60.0)
    assert env.reasons == [(SILENCE, "NotRunning")]


@timed
async def test_a_launcher_that_still_runs_keeps_what_a_previous_agent_published(env: Env) -> None:
    env.views = {POD.uid: view(conditions=(spares.condition({"trainer": READY}),))}
    env.spares.adopt()
    env.spares.show(TRAINER, READY)
    await virtual_time.passes(60.0)
    assert {reason for _, reason in env.reasons} == {"Ready"}


@timed
async def test_pods_without_the_condition_are_not_adopted(env: Env) -> None:
    env.spares.adopt()
    env.views = {POD.uid: view(conditions=(spares.condition({}),))}
    env.spares.adopt()
    await virtual_time.passes(60.0)
    assert env.published == []


@timed
async def test_an_internal_error_is_contained(env: Env) -> None:
    before = contained.count([contained.Part.CONDITION])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spares, "condition", lambda _: 1 / 0)
        env.spares.show(TRAINER, NONE)
    env.spares.show(TRAINER, READY)
    assert contained.count([contained.Part.CONDITION]) == before + 1
    assert env.reasons == [(0.0, "Ready")]
