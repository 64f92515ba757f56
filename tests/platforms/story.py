"""The steps that are the same next to every controller: a fault, the round that answers it, and what it left alone."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Self

import pytest

from hack.devnode import cluster as clusters
from hack.devnode import controlplane
from hack.devnode.cluster import Cluster
from hack.devnode.node import DevNode
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from tests.platforms import controllers
from tests.platforms.controllers import Platform
from tests.platforms.owned import Kind, Owned
from tests.scenarios.gang.product import PATIENT, Product

_DEADLINE = 120.0
BRIEF = ("--stop-timeout=15s", "--hold-timeout=120s")
"""For a controller that notices a silent agent: within 15 s, and a minute more as the agent is not connected."""
_LONGER_THAN_SILENCE = 30.0
"""Seconds from kubemend's deletion of a silent node's pods, which comes before the agent's timeouts, to after them."""

Json = dict[str, Any]
Upon = Callable[[DevNode, kube.KubeClient], AbstractAsyncContextManager[None]]


def nothing(_: DevNode, __: kube.KubeClient) -> AbstractAsyncContextManager[None]:
    """Run nothing: the controller needs only Kubernetes."""
    return contextlib.nullcontext()


class Story:
    """The training, and the rounds that it has had so far."""

    def __init__(self, platform: Platform, product: Product, training: Owned, tell: Callable[[Json], None]) -> None:
        self.training = training
        self.rounds = Rounds(training.api, training.gang)
        self._platform = platform
        self._product = product
        self._tell = tell
        self._count = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def beside(
        cls,
        platform: Platform,
        cluster: Cluster,
        kind: Kind,
        *,
        size: int,
        state: Path,
        tell: Callable[[Json], None],
        upon: Upon = nothing,
        patience: Sequence[str] = PATIENT,
    ) -> AsyncIterator[Self]:
        """Run the controller, Kubernetes' own, and the product; yields when all are ready, without a training yet.

        Kubernetes' own begin after the definitions: the garbage collector would see later ones only after half a
        minute. ``upon`` runs what the controller itself needs, such as one for the objects that it makes. ``patience``
        are kubemend's timeouts, as arguments of its controller. Skips the test where the controller has not been built.
        """
        if reason := platform.missing():
            pytest.skip(reason)
        async with contextlib.AsyncExitStack() as stack:
            api = await stack.enter_async_context(kube.connect(kubeconfig=cluster.first.kubeconfig))
            product = await stack.enter_async_context(Product.on(cluster, state=state))
            await stack.enter_async_context(upon(cluster.first, api))
            await stack.enter_async_context(controllers.run(platform, cluster.first, api))
            control_plane = cluster.first.layout.root / "control-plane"
            await stack.enter_async_context(controlplane.on(cluster.first.kubeconfig, control_plane))
            await product.start(*patience, nodes=len(cluster.nodes))
            training = await stack.enter_async_context(Owned.on(cluster, api, kind, "llm", size=size))
            yield cls(platform, product, training, tell)

    async def a_worker_is_killed(self, member: str) -> Json:
        """Its program dies of SIGKILL: all members are restarted in place."""
        before = await self.training.uids()
        await self.training.kill(member)
        return await self._restarted("a worker killed", because="Exit", recreated=set(), before=before)

    async def a_gpu_has_a_fault(self, member: str) -> Json:
        """A made-up Xid 31 on its GPU: all members are restarted in place."""
        before = await self.training.uids()
        await self.training.write_xid(member, 31)
        return await self._restarted("Xid 31", because="Device", recreated=set(), before=before)

    async def a_pod_is_deleted_in_a_round(self) -> Json:
        """While the agent of its node is stopped, the round cannot end; the pod is deleted then, and comes again."""
        training, before = self.training, await self.training.uids()
        dying, *others = [(member, await training.node_of(member)) for member in training.members]
        deleted, lost = next((member, on) for member, on in reversed(others) if on is not dying[1])
        index = training.cluster.nodes.index(lost)
        self._product.pause_agent(index)
        await training.kill(dying[0])
        await self.rounds.until(lambda rounds: len(rounds) > self._count, what="a round")
        await training.delete(deleted)
        await training.replaced(before[deleted])
        self._product.resume_agent(index)
        return await self._restarted("a pod deleted in a round", because="Exit", recreated={deleted}, before=before)

    async def all_are_suspended_in_a_round(
        self, suspend: Callable[[], Awaitable[None]] | None = None, resume: Callable[[], Awaitable[None]] | None = None
    ) -> Json:
        """While the agent of one node is stopped, the round cannot end; the owner then deletes all pods for a while.

        The round ends when they are back, and none of them is held for one of the former ones. ``suspend`` and
        ``resume`` are the causes of both; None: the owner's own field.
        """
        training = self.training
        suspend = suspend or functools.partial(training.suspend, True)
        resume = resume or functools.partial(training.suspend, False)
        dying, *others = [(member, await training.node_of(member)) for member in training.members]
        index = training.cluster.nodes.index(next(on for _, on in others if on is not dying[1]))
        self._product.pause_agent(index)
        await training.kill(dying[0])
        await self.rounds.until(lambda rounds: len(rounds) > self._count, what="a round")
        await suspend()

        async def none_is_left() -> bool:
            return not await training.pods()

        await training.until(none_is_left, what="the deletion of all pods")
        self._product.resume_agent(index)
        await resume()
        await training.all_train()
        self._count += 1
        restart = await self.rounds.finished(self._count, timeout=_DEADLINE)
        assert restart["status"]["phase"] == "Done", restart["status"]
        await self.tell("suspended in a round", restart)
        return restart

    async def a_node_is_lost(self) -> Json:
        """One node fails and is marked out of service; a member elsewhere dies then, as its peers are gone.

        The members of the lost node come again on another one, and the others wait for them in place.
        """
        training, before = self.training, await self.training.uids()
        lost, gone = training.cluster.nodes[1], await self._members_of_second_node()
        await self._product.kill_agent(1)
        await clusters.power_off(lost)
        await clusters.out_of_service(training.api, lost.name)
        await training.kill(next(member for member in training.members if member not in gone))
        return await self._restarted("a node lost", because="Exit", recreated=gone, before=before)

    async def an_agent_falls_silent(self) -> Json:
        """The agent of one node ends, and its kubelet continues; a member elsewhere dies then.

        Nothing is known of the members there, so they are replaced; no other one begins again before they are gone.
        """
        training, before = self.training, await self.training.uids()
        unknown = await self._members_of_second_node()
        await self._product.kill_agent(1)
        await training.kill(next(member for member in training.members if member not in unknown))
        restart = await self._restarted("an agent silent", because="Exit", recreated=unknown, before=before)
        await self._product.start_agent(1)
        return restart

    async def a_node_falls_silent(self) -> Json:
        """Kubelet and agent of one node end, and its pods train on, as behind a cut network; a member elsewhere dies.

        While it is unknown whether members run there no other one begins again, even once their pods are deleted. When
        the node is out of service the owner makes new pods on the other node.
        """
        training, before = self.training, await self.training.uids()
        silent, unknown = training.cluster.nodes[1], await self._members_of_second_node()
        others = [member for member in training.members if member not in unknown]
        lives = {member: training.lives(member) for member in others}
        await self._product.kill_agent(1)
        await silent.kubelet.kill()
        await training.kill(others[0])

        async def are_deleted() -> bool:
            return not unknown & {*await training.pods()}

        await training.until(are_deleted, what="the deletion of the silent node's pods")
        await asyncio.sleep(_LONGER_THAN_SILENCE)
        waiting, running = {member: training.lives(member) for member in others}, await self.rounds.all()
        steps = training.steps()
        await clusters.power_off(silent)
        await clusters.out_of_service(training.api, silent.name)
        assert waiting == lives, "a member began again"
        assert len(running) == self._count + 1
        return await self._restarted("a node silent", because="Exit", recreated=unknown, before=before, steps=steps)

    async def _members_of_second_node(self) -> set[str]:
        training = self.training
        on = {member: await training.node_of(member) for member in training.members}
        found = {member for member, node in on.items() if node is training.cluster.nodes[1]}
        assert found, "no member is on the node"
        return found

    async def a_round_is_refused(self, member: str) -> Json:
        """A member's program dies of SIGKILL, and its gang is not restarted; kubelet starts the one again."""
        await self.training.kill(member)
        self._count += 1
        restart = await self.rounds.finished(self._count, timeout=_DEADLINE)
        assert restart["status"]["phase"] == "Failed", restart["status"]
        await self.training.all_train()
        await self.tell("a round refused", restart)
        return restart

    async def completes(self, is_over: Callable[[Json], bool], *, with_member: str | None = None) -> None:
        """The owner's status says that the training is complete, and its members have reached the goal.

        ``with_member``: the one whose end completes the owner, which does not wait for the others; None: all do.
        """
        training = self.training
        goal = training.set_goal(further=20)

        async def over() -> bool:
            return is_over((await training.owner()).get("status") or {})

        await training.until(over, what="the completion")
        steps = training.steps()
        assert {steps[member] for member in ([with_member] if with_member else steps)} == {goal}
        assert len(await self.rounds.all()) == self._count

    async def tell(self, case: str, restart: Json) -> None:
        """Add a row to the table: the case, its figures, and the owner's own budget afterwards."""
        status, budget = restart["status"], await self.training.budget()
        row = {
            "platform": self._platform.name,
            "version": self._platform.module.version,
            "case": case,
            "decision": status["decision"]["kind"],
            "ms": status.get("timings", {}).get("totalMilliseconds"),
        }
        self._tell({**row, "its own count": ", ".join(f"{key} {value}" for key, value in budget.items())})

    async def _restarted(
        self,
        case: str,
        *,
        because: str,
        recreated: set[str],
        before: dict[str, str],
        steps: dict[str, int] | None = None,
    ) -> Json:
        """Wait for the next round, and check its result; all train afterwards, from their checkpoints.

        ``steps`` are those; None: the current ones, as no member can have begun again yet.
        """
        self._count += 1
        steps = self.training.steps() if steps is None else steps
        restart = await self.rounds.finished(self._count, timeout=_DEADLINE)
        status = restart["status"]
        assert status["phase"] == "Done", status
        assert status["trigger"]["kind"] == because, status
        await self.training.all_train()
        after = await self.training.uids()
        assert {member for member, uid in before.items() if uid not in after.values()} == recreated, status
        assert all(self.training.lives(member)[-1].step >= steps[member] for member in after if member in before)
        await self.tell(case, restart)
        return restart
