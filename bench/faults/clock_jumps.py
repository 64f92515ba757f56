"""Fault: the wall clocks of node and controller are set an hour ahead, and back."""

import datetime as dt
import signal
import time
from typing import Final

from bench.faults import looking
from bench.faults.product import Product
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from bench.faults.trainers import Trainer
from bench.faults.wallclock import WallClock
from hack.devnode.gangs import Gang

PROMISE: Final = (
    "A wall clock that jumps by an hour, forward or back, loses no verdict, restarts nothing by itself, blocks "
    "no budget, and disconnects no agent from its hub."
)

_HOUR: Final = 3600.0
_OFF_THE_BUS: Final = 79
_JUMPS: Final = (
    ("the clock is set an hour ahead", _HOUR),
    ("it is set back, to the right time", 0.0),
    ("it is set back by another hour", -_HOUR),
)
"""Each action, and by how much the clock is ahead afterwards. So many restarts and rounds begin without backoff."""


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Set the clock of agent and controller only (``bench.faults.wallclock``)."""
    del scale  # cannot be shortened
    with WallClock.made(stage.directory / "clock") as clock:
        async with (
            stage.product() as product,
            stage.trainer("timeless") as trainer,
            stage.trainer("beside") as bystander,
            stage.trainer("observed", annotations={}) as observed,
            stage.gang("timely", nodes=(0,)) as gang,
        ):
            await product.start_controller(surroundings=clock.environment)
            agent = await product.start_agent(0, surroundings=clock.environment)
            log = product.log(0)
            await observed.fails(_OFF_THE_BUS)
            await observed.until(lambda seen: seen.condition("DeviceFailure").get("status") == "True", what="Xid 79")
            for number, (what, ahead) in enumerate(_JUMPS, start=1):
                reported.tries(what)
                clock.set(ahead=ahead)
                await _goes_on(stage, reported, trainer=trainer, gang=gang, number=number)
                await _reconnect(product, clock)
                shown = log.events("hub.connected")[-1]["timestamp"]
                by = dt.datetime.fromisoformat(shown).timestamp() - time.time()
                reported.measures("agents_clock_is_ahead_by_s", round(by))
                reported.keeps(
                    Kind.UNREPORTED, f"the agent's clock is ahead by {by:.0f} s", holds=abs(by - ahead) < _HOUR / 2
                )
            await looking.until(lambda: looking.works(agent.metrics_address), what="agent and hub")
            after = await looking.metrics(agent.metrics_address)
            reported.keeps(
                Kind.VERDICT,
                "the GPU that is off the bus is not Unhealthy any more",
                holds=after.get(f"kubemend_device_verdict{{{observed.uuid},Unhealthy}}") == 1.0,
            )
            seen = await observed.see()
            reported.keeps(
                Kind.CONDITION, "DeviceFailure is gone", holds=seen.condition("DeviceFailure")["status"] == "True"
            )
            acted = [each for each in log.events("restart.acted") if "timeless" in str(each)]
            reported.measures("restarts", len(acted))
            reported.keeps(
                Kind.UNASKED, f"{len(acted)} restarts for {len(_JUMPS)} faults", holds=len(acted) == len(_JUMPS)
            )
            reported.keeps(Kind.UNASKED, "a pod without a fault was restarted", holds=await bystander.is_untouched())
            reported.keeps(Kind.UNASKED, "a pod that did not opt in was restarted", holds=await observed.is_untouched())


async def _goes_on(stage: Stage, reported: Reported, *, trainer: Trainer, gang: Gang, number: int) -> None:
    """Have a pod and a gang restarted. Raises TimeoutError."""
    began = time.monotonic()
    old = await trainer.fails()
    await trainer.verified(old)
    reported.measures("restart_ms", round((time.monotonic() - began) * 1000))
    fault = await gang.end(0, exit_code=1)
    await stage.keeps_round(gang, reported, number=number, since=fault, what=f"round {number}")
    reported.keeps(Kind.RESTART, f"restart {number} was not in place", holds=await trainer.is_in_place())


async def _reconnect(product: Product, clock: WallClock) -> None:
    """Make agent and hub check certificate and token again. Raises TimeoutError."""
    await product.end_controller(1, signal.SIGTERM)
    await product.start_controller(surroundings=clock.environment)
    address = product.agents[0].metrics_address
    await looking.until(lambda: looking.works(address), what="agent and hub after the clock was set")
