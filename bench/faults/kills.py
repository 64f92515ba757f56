"""Fault: agents and controllers are killed, or upgraded, at every step of a restart and in every state of a round."""

import asyncio
import itertools
import signal
import time
from typing import Final

from bench.faults import looking
from bench.faults.product import PATIENT, Product
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode.criproxy import CriProxy, Gate
from hack.devnode.gangs import Gang
from kubemend.agent.model.workloads import ContainerState

PROMISE: Final = (
    "Agent and controller may be killed or upgraded at any step of a restart and in any state of a round: the "
    "next process finishes it, no verdict is lost, and no gang waits for a member that failed in that time."
)

_CALLS: Final = ("StopContainer", "CreateContainer", "StartContainer")
_HOWS: Final = (signal.SIGKILL, signal.SIGTERM)
_STATES: Final = ("Stopping", "Releasing")
_VICTIMS: Final = ("agent", "controller")
_VERBOSE: Final = "--log-level=debug"  # it logs a member that is stopped
_OFF_THE_BUS: Final = 79


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Kill, and start again."""
    restarts = [*itertools.product(_CALLS, _HOWS)] if scale.whole else [("CreateContainer", signal.SIGKILL)]
    every = [*itertools.product(_STATES, _VICTIMS, _HOWS)]
    rounds = (
        every if scale.whole else [("Stopping", "agent", signal.SIGKILL), ("Releasing", "controller", signal.SIGTERM)]
    )
    proxy = CriProxy(upstream=stage.nodes[0].layout.containerd_socket, socket=stage.directory / "cri.sock")
    async with (
        proxy,
        stage.product() as product,
        stage.trainer("observed", annotations={}) as observed,
        stage.trainer("beside", node=1) as bystander,
    ):
        await product.start_controller(*PATIENT)
        await product.start_agent(0, f"--cri-endpoint={proxy.socket}", _VERBOSE)
        await product.start_agent(1)
        await observed.fails(_OFF_THE_BUS)
        await observed.until(lambda seen: seen.condition("DeviceFailure").get("status") == "True", what="Xid 79")
        for number, (call, how) in enumerate(restarts):
            reported.tries(f"the agent gets {how.name} at {call} of a restart")
            await _in_restart(
                stage, reported, product=product, proxy=proxy, name=f"cut-off-{number}", call=call, how=how
            )
        for number, (state, victim, how) in enumerate(rounds):
            reported.tries(f"the {victim} gets {how.name} while a round is {state}")
            async with stage.gang(f"cut-off-{number}") as gang:
                since = await _brought_to(state, product, gang)
                await _struck(product, victim, how, proxy=proxy)
                for index in product.agents:
                    product.resume_agent(index)
                await stage.keeps_round(gang, reported, number=1, since=since, what=f"{state}, {victim}, {how.name}")
        if scale.whole:
            reported.tries("a member fails while its agent is away, and kubelet restarts it alone")
            await _missed(stage, reported, product=product, proxy=proxy)
        after = await looking.metrics(product.agents[0].metrics_address)
        reported.keeps(
            Kind.VERDICT,
            "the GPU that is off the bus is not Unhealthy any more",
            holds=after.get(f"kubemend_device_verdict{{{observed.uuid},Unhealthy}}") == 1.0,
        )
        reported.keeps(Kind.UNASKED, "a pod without a fault was restarted", holds=await bystander.is_untouched())
        reported.keeps(Kind.UNASKED, "a pod that did not opt in was restarted", holds=await observed.is_untouched())


async def _in_restart(
    stage: Stage, reported: Reported, *, product: Product, proxy: CriProxy, name: str, call: str, how: signal.Signals
) -> None:
    """Signal the agent while a call of a restart is held."""
    async with stage.trainer(name) as trainer:
        gate = Gate(lambda seen: seen.method == call)
        proxy.hooks[:] = [gate]
        old = await trainer.fails()
        await asyncio.wait_for(gate.reached.wait(), looking.SECONDS)
        ending = asyncio.create_task(product.end_agent(0, how), name="end-agent")
        await asyncio.sleep(0)  # the signal goes out first
        gate.open()
        await ending
        await product.start_agent(0, f"--cri-endpoint={proxy.socket}", _VERBOSE)
        await trainer.replaced(old)
        reported.keeps(Kind.RESTART, f"{call}, {how.name}: not in place", holds=await trainer.is_in_place())


async def _missed(stage: Stage, reported: Reported, *, product: Product, proxy: CriProxy) -> None:
    """Have a member fail while its agent is away."""
    async with stage.gang("missed") as gang:
        await product.end_agent(0, signal.SIGKILL)
        fault = await gang.end(0, exit_code=1)
        await gang.all_running(since=fault, count=1, timeout=looking.SECONDS)
        back = time.monotonic_ns()
        await product.start_agent(0, f"--cri-endpoint={proxy.socket}", _VERBOSE)
        await stage.keeps_round(gang, reported, number=1, since=back, what="missed")


async def _brought_to(state: str, product: Product, gang: Gang) -> int:
    """Bring a round of the gang into a state and hold it there; return the time of its fault. Raises TimeoutError."""
    log, first = product.controllers_log(), product.log(0)
    product.pause_agent(1)
    fault = await gang.end(0, exit_code=1)
    await looking.until(lambda: _held(gang, 0), what="the held successor")
    if state == "Releasing":
        await looking.until(lambda: _has_reported(product, first), what="the agent's report of the held successor")
        product.pause_agent(0)
        product.resume_agent(1)

        async def look() -> bool | None:
            return True if log.events("round.phase", phase=state) else None

        await looking.until(look, what=f"a round that is {state}")
    return fault


async def _has_reported(product: Product, log: looking.Log) -> bool | None:
    """Return True when the agent has sent that its member is stopped. It answers only after that: it has one loop."""
    if not log.events("round.step_result", phase="Stopped"):
        return None
    return bool(await looking.metrics(product.agents[0].metrics_address)) or None


async def _struck(product: Product, victim: str, how: signal.Signals, *, proxy: CriProxy) -> None:
    """End the victim, and start another one in its place."""
    if victim == "controller":
        await product.end_controller(1, how)
        await product.start_controller(*PATIENT)
        return
    await product.end_agent(0, how)
    await product.start_agent(0, f"--cri-endpoint={proxy.socket}", _VERBOSE)


async def _held(gang: Gang, index: int) -> bool | None:
    running = [view for view in await gang.containers(index) if view.state is ContainerState.RUNNING]
    return (len(running) == 1 and running[0].attempt > 0 and await gang.is_frozen(index)) or None
