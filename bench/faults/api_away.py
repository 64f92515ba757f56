"""Fault: the API server hangs; it accepts connections and does not answer."""

import asyncio
import os
import signal
import time
from typing import Final

from bench.faults import looking
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode.gang_objects import CONTAINER
from hack.devnode.observer import Seen
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerState, PodUid

PROMISE: Final = (
    "Without the API server single pods are restarted as usual, a round that begins within the first seconds "
    "finishes, and when the server is back each pod's newest condition is written."
)

_LEASE_LOST: Final = 20.0
"""Seconds: a controller that cannot renew its Lease for 10 s is no longer the leader."""

_RESTARTS: Final = 3
"""This many rounds begin without backoff, but the next one waits until it is certain that the one before cannot be
verified: a short trial has only one.
"""


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Make the server unavailable, and inject faults in the meantime."""
    async with stage.product() as product:
        await product.start(nodes=2)
        log = product.log(0)
        async with (
            stage.trainer("deserted") as trainer,
            stage.trainer("beside", node=1) as bystander,
            stage.gang("abandoned") as gang,
        ):
            restarts = _RESTARTS if scale.whole else 1
            uids = [uid for uid, _, _ in await gang.identities()]
            reported.tries(f"the API server hangs for {scale.away:g} s")
            server = stage.cluster.first.api
            server.pause()
            back_at = time.monotonic() + scale.away
            rounds, last = 1, 0
            try:
                last = fault = await _ends(stage.cri(1), uids[1])
                new = await gang.all_running(since=fault, timeout=looking.SECONDS)
                reported.measures("round_ms", round((max(life.runs_since for life in new) - fault) / 1e6))
                for number in range(restarts):
                    old = await trainer.fails()
                    reported.measures("restart_seen_after_ms", round(await trainer.replaced(old) * 1000))
                    if number + 1 < restarts:
                        await asyncio.sleep((back_at - time.monotonic()) / (2 * restarts))
                if scale.away > 2 * _LEASE_LOST:
                    reported.tries("a member of a gang fails without a leader")
                    await asyncio.sleep(_LEASE_LOST)
                    rounds, last = 2, await _ends(stage.cri(0), uids[0])
                    await gang.all_running(since=last, count=1, timeout=looking.SECONDS)
                await asyncio.sleep(max(0.0, back_at - time.monotonic()))
                children = [*(each.child for each in product.agents.values()), product.controllers[1].child]
                alive = all(child.returncode is None for child in children)
                reported.keeps(Kind.PROCESS, "an agent or the controller ended", holds=alive)
            finally:
                server.resume()
            await looking.until(stage.api_answers, what="an answer of the API server")
            before = await looking.metrics(product.agents[0].metrics_address)
            began = time.monotonic()
            newest = await trainer.reported(old, number=restarts)
            reported.measures("newest_condition_after_ms", round((time.monotonic() - began) * 1000))
            reported.measures("newest_condition", newest.condition("InPlaceRestart")["message"])
            # A member that failed without a leader was restarted alone: its gang is restarted when there is a leader
            # again.
            await stage.keeps_round(gang, reported, number=rounds, since=last, what=f"round {rounds} of {rounds}")
            phases = [each["status"]["phase"] for each in await stage.rounds(gang).all()]
            reported.keeps(Kind.ROUND, f"the rounds have ended as {phases}", holds=set(phases) == {"Done"})
            later = await trainer.see()
            same = _restart(later) == _restart(newest)
            reported.keeps(Kind.CONDITION, f"an older condition came after the newest: {later.conditions}", holds=same)
            after = await looking.metrics(product.agents[0].metrics_address)
            reported.measures(
                "condition_patches_afterwards",
                int(after["kubemend_condition_patches_total"] - before["kubemend_condition_patches_total"]),
            )
            finished = log.events("restart.finished")
            reported.keeps(
                Kind.RESTART,
                f"{len(finished)} restarts of {restarts} were finished",
                holds=sum("deserted" in str(each) for each in finished) == restarts,
            )
            reported.keeps(Kind.RESTART, "the pod was replaced", holds=await trainer.is_in_place())
            reported.keeps(Kind.UNASKED, "another pod was restarted", holds=await bystander.is_untouched())
            reported.keeps(Kind.DECISION, "a finding was dropped", holds=after["kubemend_findings_lost_total"] == 0)


async def _ends(cri: CriClient, uid: str) -> int:
    """Have a member's worker exit with 1; return the moment before it. The API server is not called."""
    views = await cri.list_containers(pod_uid=PodUid(uid), name=CONTAINER)
    (running,) = [view for view in views if view.state is ContainerState.RUNNING]
    pid = (await cri.container_status(running.id)).pid
    assert pid is not None, f"the worker of {uid} does not run"
    moment = time.monotonic_ns()
    os.kill(pid, signal.SIGUSR2)
    return moment


def _restart(seen: Seen) -> str:
    """Return the restart in the condition's message, as in ``trainer restart 3 by swap``."""
    return seen.condition("InPlaceRestart")["message"].partition(" in ")[0]
