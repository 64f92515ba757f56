"""Fault: agents and controller are of different releases, as in the middle of every upgrade."""

import functools
import signal
from typing import Final

from bench.faults import looking
from bench.faults.product import Product
from bench.faults.relay import Accent, Relay
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode.node import Agent

PROMISE: Final = (
    "An agent and a controller of neighbouring releases work together; if they are too far apart, both report "
    "which one must be upgraded, and the agent works alone."
)

_PREVIOUS: Final = Accent(protocol=1)
_SILENT: Final = Accent()
_NEXT: Final = Accent(protocol=2, news=True)
_PAIRS: Final = (
    ("an agent of the release before", _PREVIOUS, _PREVIOUS),
    ("a hub of the release before, which does not name its protocol", _PREVIOUS, _SILENT),
    ("an agent of the next release", _NEXT, _PREVIOUS),
    ("a hub of the next release", _PREVIOUS, _NEXT),
)


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Put a relay between agent and hub that presents each to the other with another release (``relay``)."""
    pairs = _PAIRS if scale.whole else _PAIRS[-1:]
    async with stage.product() as product:
        await product.start_controller()
        await product.hub.agent_flags(stage.nodes[0])  # waits for the certificates
        for number, (what, agents, hubs) in enumerate(pairs):
            reported.tries(what)
            async with Relay.on(stage.api, hub=product.hub.hub_addresses[0], agents=agents, hubs=hubs) as relay:
                agent = await _launched(stage, product, relay)
                await looking.until(functools.partial(looking.works, agent.metrics_address), what=f"{what}, welcomed")
                async with stage.gang(f"skewed-{number}", nodes=(0,)) as gang:
                    fault = await gang.end(0, exit_code=1)
                    await stage.keeps_round(gang, reported, number=1, since=fault, what=what)
                reported.measures("messages_passed", relay.passed)
                await product.end_agent(0, signal.SIGTERM)
        await _too_far_apart(stage, reported, product)


async def _too_far_apart(stage: Stage, reported: Reported, product: Product) -> None:
    """Have an agent announce a version older than any that the hub supports."""
    reported.tries("an agent that is too old for the hub")
    hub = product.hub.hub_addresses[0]
    async with (
        Relay.on(stage.api, hub=hub, agents=_SILENT, hubs=_PREVIOUS) as relay,
        stage.trainer("old-fashioned") as trainer,
        stage.gang("old-gang", nodes=(0,)) as gang,
    ):
        log = product.log(0)
        agent = await _launched(stage, product, relay)
        await looking.until(lambda: looking.works(agent.metrics_address, hub=False), what="the agent")

        async def look() -> bool | None:
            said = [each["message"] for each in log.events("component", part="hub", state="degraded")]
            return True if any("Upgrade the agent" in each for each in said) else None

        await looking.until(look, what="the agent's report that it is too old")
        counted = await looking.metrics(product.controllers[1].metrics_address)
        refused = counted["kubemend_hub_refused_total{OtherVersion}"]
        reported.keeps(Kind.DECISION, "the hub has not counted it", holds=refused > 0)
        old = await trainer.fails()
        await trainer.verified(old)
        reported.keeps(Kind.RESTART, "a single pod was not restarted in place", holds=await trainer.is_in_place())
        fault = await gang.end(1, exit_code=1)
        await gang.all_running(since=fault, count=1, timeout=looking.SECONDS)
        reported.keeps(Kind.ROUND, "a round without the agent", holds=not await stage.rounds(gang).all())


async def _launched(stage: Stage, product: Product, relay: Relay) -> Agent:
    """Start the first node's agent, which uses the relay as the hub."""
    flags = [flag for flag in await product.hub.agent_flags(stage.nodes[0]) if not flag.startswith("--hub=")]
    return await product.launch_agent(0, *flags, f"--hub=127.0.0.1:{relay.port}", alone=True)
