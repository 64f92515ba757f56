"""Hand out slots to namespaces in turn; a waiting restart has none."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.actuator import hooks, turns
from kubemend.agent.actuator.device_waits import DeviceWaits
from kubemend.agent.model.workloads import ExecHook
from kubemend.agent.restart.admission import OwnerFacts
from kubemend.agent.restarts.conclusion import Conclusions
from kubemend.agent.restarts.slots import PodLocks, Slots
from tests.environments.restarts import RestartEnv
from tests.environments.runtime import POD

SECONDS = 60.0


class Node:
    """Restarts that proceed when a test releases them, in the order of their turns."""

    def __init__(self, count: int) -> None:
        self.slots = Slots(count)
        self.at_work: list[str] = []
        self._says: dict[str, asyncio.Queue[str]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def restart(self, name: str, *, namespace: str = "a") -> None:
        self._says[name] = asyncio.Queue()
        self._tasks[name] = asyncio.create_task(self._restart(name, namespace))
        await settled()

    async def say(self, name: str, what: str) -> None:
        """Make a restart ``wait`` for something else, resume (``on``), or ``end``."""
        self._says[name].put_nowait(what)
        await settled()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await settled()

    async def over(self) -> None:
        """End all restarts."""
        for task in self._tasks.values():
            task.cancel()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _restart(self, name: str, namespace: str) -> None:
        async with self.slots.turn(namespace):
            while True:
                self.at_work.append(name)
                try:
                    if await self._says[name].get() == "end":
                        return
                finally:
                    self.at_work.remove(name)
                async with turns.waiting():
                    assert await self._says[name].get() == "on"


NodeOf = Callable[[int], Node]


@pytest.fixture
async def node_of() -> AsyncIterator[NodeOf]:
    """Make a node with so many slots."""
    made: list[Node] = []

    def make(count: int) -> Node:
        made.append(Node(count))
        return made[-1]

    yield make
    for node in made:
        await node.over()
        assert not node.slots._held
        assert not node.slots._queues


async def settled() -> None:
    """Run all tasks until they block: nothing here waits for I/O."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_slots_limit_restarts_and_serve_in_order(node_of: NodeOf) -> None:
    node = node_of(2)
    for name in ("one", "two", "three", "four"):
        await node.restart(name)
    assert node.at_work == ["one", "two"]
    await node.say("two", "end")
    assert node.at_work == ["one", "three"]
    await node.say("one", "end")
    assert node.at_work == ["three", "four"]


async def test_slots_waiting_restart_returns_slot_and_resumes_first(node_of: NodeOf) -> None:
    node = node_of(1)
    for name in ("graceful", "quick", "later"):
        await node.restart(name)
    await node.say("graceful", "wait")
    assert node.at_work == ["quick"]
    await node.say("graceful", "on")
    assert node.at_work == ["quick"]
    await node.say("quick", "end")
    assert node.at_work == ["graceful"]
    await node.say("graceful", "end")
    assert node.at_work == ["later"]


async def test_slots_waiting_restarts_block_no_other(node_of: NodeOf) -> None:
    node = node_of(2)
    for number in range(50):
        await node.restart(f"patient-{number}")
        await node.say(f"patient-{number}", "wait")
    await node.restart("quick")
    assert node.at_work == ["quick"]


async def test_slots_alternate_between_namespaces(node_of: NodeOf) -> None:
    node = node_of(1)
    await node.restart("a-0", namespace="a")
    for number in range(1, 4):
        await node.restart(f"a-{number}", namespace="a")
    await node.restart("b-1", namespace="b")
    await node.restart("b-2", namespace="b")
    await node.restart("c-1", namespace="c")
    order = []
    for _ in range(7):
        (name,) = node.at_work
        order.append(name)
        await node.say(name, "end")
    assert order == ["a-0", "a-1", "b-1", "c-1", "a-2", "b-2", "a-3"]


async def test_slots_one_namespace_never_has_all(node_of: NodeOf) -> None:
    node = node_of(8)
    for number in range(9):
        await node.restart(f"a-{number}", namespace="a")
    assert len(node.at_work) == 7
    await node.restart("b-1", namespace="b")
    assert node.at_work[-1] == "b-1"
    await node.say("a-0", "end")
    assert len(node.at_work) == 8


async def test_slots_cancelled_waiter_leaves_no_trace(node_of: NodeOf) -> None:
    node = node_of(1)
    for name in ("one", "two", "three"):
        await node.restart(name)
    await node.cancel("two")
    await node.say("one", "wait")
    assert node.at_work == ["three"]
    await node.say("one", "on")
    await node.cancel("one")
    await node.say("three", "end")
    await node.restart("four")
    assert node.at_work == ["four"]
    await node.over()
    assert not node.slots.is_full("a")


async def test_slots_slot_of_cancelled_waiter_goes_to_next(node_of: NodeOf) -> None:
    node = node_of(1)
    for name in ("one", "two", "three"):
        await node.restart(name)
    node._says["one"].put_nowait("end")
    for _ in range(20):
        if not node.at_work:  # its slot is on its way to the second, which has not received it yet
            break
        await asyncio.sleep(0)
    node._tasks["two"].cancel()
    await settled()
    assert node.at_work == ["three"]


async def test_slots_only_waiter_can_be_cancelled(node_of: NodeOf) -> None:
    node = node_of(1)
    await node.restart("one")
    await node.restart("two")
    await node.cancel("two")
    assert node.at_work == ["one"]


@pytest.mark.parametrize("is_queued", [False, True], ids=["it resumes later", "it waits for a slot already"])
async def test_slots_task_that_outlasts_its_restart_takes_none(node_of: NodeOf, *, is_queued: bool) -> None:
    node, resumes, left = node_of(1), asyncio.Event(), []

    async def waits() -> None:
        async with turns.waiting():
            await resumes.wait()

    async def restart() -> None:
        async with node.slots.turn("a"):
            turn = turns._turn.get()
            assert turn is not None
            turn.count()
            left.append(asyncio.create_task(waits()))
            async with turns.waiting():
                await asyncio.Event().wait()

    first = asyncio.create_task(restart())
    await settled()
    await node.restart("second")
    if is_queued:
        resumes.set()
        await settled()
    first.cancel()
    await asyncio.wait({first})
    if is_queued:
        await node.say("second", "end")
    resumes.set()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*left)


async def test_turn_with_several_tasks_waits_only_if_all_wait() -> None:
    slots, seen = Slots(1), []
    first, second = asyncio.Event(), asyncio.Event()

    async def part(until: asyncio.Event) -> None:
        async with turns.waiting():
            await until.wait()
        seen.append(slots.is_full("a"))

    async def restart() -> None:
        async with slots.turn("a"):
            await turns.side_by_side(part(first), part(second), _working(seen, slots))
            seen.append(slots.is_full("a"))

    running = asyncio.create_task(restart())
    await settled()
    assert seen == [True], "the third part was at work"
    assert not slots.is_full("a"), "all that is left of it waits"
    first.set()
    await settled()
    assert not slots.is_full("a")
    second.set()
    async with asyncio.timeout(SECONDS):
        await running
    assert seen == [True, True, True, True]
    assert not slots.is_full("a")


async def test_turn_tasks_that_resume_together_take_one_slot() -> None:
    slots, on = Slots(2), asyncio.Event()

    async def part() -> bool:
        async with turns.waiting():
            await on.wait()
        await settled()
        return slots.is_full("a")

    async with slots.turn("a"):
        parts = asyncio.create_task(turns.side_by_side(part(), part()))
        await settled()
        on.set()
        async with asyncio.timeout(SECONDS):
            assert await parts == [False, False]
        assert slots.try_acquire("a")
        slots.release("a")


@pytest.mark.parametrize("failing", [0, 1])
async def test_turn_failing_task_loses_no_slot(failing: int) -> None:
    slots = Slots(1)
    ending = asyncio.Event()

    async def part(number: int) -> None:
        if number == failing:
            ending.set()
            raise ZeroDivisionError
        async with turns.waiting():
            await ending.wait()

    async def restart() -> None:
        async with slots.turn("a"):
            with pytest.raises(ZeroDivisionError):
                await turns.side_by_side(part(0), part(1))
            async with turns.waiting():
                await settled()

    async with asyncio.timeout(SECONDS):
        await restart()
    await settled()
    assert not slots.is_full("a")


async def test_parts_of_a_turn_that_is_cancelled_before_they_begin_are_closed() -> None:
    """Python reports a coroutine that nothing has awaited, some time later and in any other place."""
    slots, parts = Slots(1), [_one(), _one()]

    async def restart() -> None:
        async with slots.turn("a"):
            await turns.side_by_side(*parts)

    running = asyncio.create_task(restart())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert [inspect.getcoroutinestate(each) for each in parts] == [inspect.CORO_CLOSED] * 2
    assert not slots.is_full("a")


async def test_turn_waiting_without_slot_is_a_no_op() -> None:
    async with turns.waiting():
        pass
    assert await turns.side_by_side(_one(), _one()) == [1, 1]


async def test_turn_is_left_only_by_a_wait_that_lasts() -> None:
    slots = Slots(1)
    async with slots.turn("a"):
        async with turns.waiting(after=SECONDS):
            assert slots.is_full("a")
        assert slots.is_full("a")
        async with turns.waiting(after=0.001), asyncio.timeout(SECONDS), slots.turn("b"):
            pass
        assert slots.is_full("a")


class Answer:
    """What a call waits for: it is ``asked`` for, ``answered`` by the test, or ``given_up`` before."""

    def __init__(self) -> None:
        self.asked, self.answered, self.given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.asked.set()
        try:
            await self.answered.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise

    async def while_slots_are_free(self, slots: Slots) -> None:
        """Wait for the call, take the only slot next to it, and answer."""
        await self.asked.wait()
        async with slots.turn(POD.namespace):
            assert not self.given_up.is_set()
        self.answered.set()


@pytest.mark.parametrize("grace", ["5s", "0s"])
async def test_slots_pod_that_is_slow_to_end_holds_no_slot(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch, grace: str
) -> None:
    monkeypatch.setattr(turns, "SLOW", 0.001)
    end = Answer()
    stop: Callable[..., Awaitable[None]] = env.pod.cri_env.cri.stop_container

    async def slow_to_end(container_id: str, **_: float) -> None:
        await end.wait()
        await stop(container_id, grace=0)

    monkeypatch.setattr(env.pod.cri_env.cri, "stop_container", slow_to_end)
    restarts = env.restarts
    restarts._slots = Slots(1)
    restart = asyncio.create_task(env.ask(**{"grace-period": grace}))
    async with asyncio.timeout(SECONDS):
        await end.while_slots_are_free(restarts._slots)
        condition = await restart
    assert condition.message.endswith("; verified")
    assert not restarts._slots.is_full(POD.namespace)


async def test_slots_pod_with_unanswered_owner_query_holds_no_slot(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "SLOW", 0.001)
    owner = Answer()

    async def slow(*_: object, **__: object) -> OwnerFacts:
        await owner.wait()
        return OwnerFacts()

    monkeypatch.setattr(env.dependencies.owners, "facts", slow)
    restarts = env.restarts
    restarts._slots = Slots(1)
    restart = asyncio.create_task(env.ask())
    async with asyncio.timeout(SECONDS):
        await owner.while_slots_are_free(restarts._slots)
        condition = await restart
    assert condition.message.endswith("; verified")


@pytest.mark.parametrize(
    ("holder", "name"),
    [(hooks, "run_post_start"), (Conclusions, "_verify"), (DeviceWaits, "wait_for_change")],
    ids=["hook", "kubelet", "device"],
)
async def test_slots_restart_that_waits_for_others_holds_no_slot(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch, holder: object, name: str
) -> None:
    """The pod decides how long its hooks and its devices take."""
    other = Answer()
    wait: Callable[..., Awaitable[Any]] = getattr(holder, name)

    async def slow(*arguments: Any, **named: Any) -> Any:
        await other.wait()
        return await wait(*arguments, **named)

    async def is_open(_: DeviceWaits) -> bool:
        return name != "wait_for_change" or other.answered.is_set()

    monkeypatch.setattr(holder, name, slow)
    monkeypatch.setattr(DeviceWaits, "is_open", is_open)
    pod, hook = env.pod.pods.pods()[POD.uid], ExecHook(("true",))
    await env.pod.pods.put(replace(pod, containers=tuple(replace(each, post_start=hook) for each in pod.containers)))
    restarts = env.restarts
    restarts._slots = Slots(1)
    restart = asyncio.create_task(env.ask())
    async with asyncio.timeout(SECONDS):
        await other.while_slots_are_free(restarts._slots)
        await restart
    assert not restarts._slots.is_full(POD.namespace)


async def test_locks_restarts_of_a_pod_follow_one_another() -> None:
    locks, steps = PodLocks(), []

    async def restart(name: str) -> None:
        async with locks.turn(POD.uid):
            steps.append(f"{name} begins")
            await settled()
            steps.append(f"{name} ends, locked: {locks.is_locked(POD.uid)}")

    async with asyncio.timeout(SECONDS):
        await asyncio.gather(restart("one"), restart("two"))
    assert steps == ["one begins", "one ends, locked: True", "two begins", "two ends, locked: True"]
    assert not locks.is_locked(POD.uid)


async def test_locks_round_hurries_the_pods_restart_only_while_it_waits() -> None:
    locks, first, second = PodLocks(), Answer(), Answer()

    async def waits() -> None:
        async with locks.turn(POD.uid, for_round=True):
            pytest.fail("the pod is locked")

    async with locks.turn(POD.uid):
        waiting = [asyncio.create_task(waits()) for _ in range(2)]
        await settled()
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        await turns.unless_hurried(first.wait())
        assert first.given_up.is_set(), "the other round still waits"
        waiting[1].cancel()
        await asyncio.wait(waiting)
        hook = asyncio.create_task(turns.unless_hurried(second.wait()))
        await second.asked.wait()
        await settled()
        second.answered.set()
        await hook
        assert not second.given_up.is_set()


async def test_locks_restart_that_is_of_no_round_hurries_none() -> None:
    locks, verified = PodLocks(), Answer()
    async with locks.turn(POD.uid):
        waiting = asyncio.create_task(locks.turn(POD.uid).__aenter__())
        await settled()
        verifying = asyncio.create_task(turns.unless_hurried(verified.wait()))
        await verified.asked.wait()
        await settled()
        assert not verified.given_up.is_set()
        verified.answered.set()
        await verifying
        waiting.cancel()
        await asyncio.wait({waiting})


async def _working(seen: list[bool], slots: Slots) -> None:
    seen.append(slots.is_full("a"))


async def _one() -> int:
    return 1
