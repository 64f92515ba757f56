"""A swap on the real CRI-O copies the paths of the writable layer that the pod names to the successor."""

from collections.abc import AsyncIterator

import pytest

from hack.devnode import crio
from kubemend.agent.actuator.layer_copies import OF_IMAGE
from kubemend.agent.actuator.layer_moves import ABSENT, NO_KIND
from kubemend.agent.restart import intents
from tests.devnode.pods import Pods, container
from tests.environments.kept_layers import KeptLayersEnv

pytestmark = [pytest.mark.crio, pytest.mark.long]

LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def env(runtime: crio.Crio) -> AsyncIterator[KeptLayersEnv]:
    async with KeptLayersEnv.on(runtime.node) as made:
        yield made


@pytest.mark.parametrize("order", intents.SwapOrder)
async def test_successor_finds_copies_at_its_first_instruction(
    pods: Pods, env: KeptLayersEnv, order: intents.SwapOrder
) -> None:
    writes = (
        '[ -z "$KUBEMEND_RESTART_COUNT" ] || cp /model/deep/cache/kernel /found; '
        '[ -n "$KUBEMEND_RESTART_COUNT" ] || { umask 027; mkdir -p /model/deep/cache; '
        "chown 7:8 /model; chmod 1711 /model; cd /model/deep/cache; echo compiled > kernel; ln -s /proc/1/root out; "
        "mkfifo /pipe; echo lost > /lost; echo more > /bin/more-of-it; : > /ready; }; " + LOOP
    )
    running = await pods.run(name=f"copied-{order.value}", containers=[container("main", writes)])
    await env.ready(running)
    new, note = await env.swap(running, "/model/deep/cache", "/bin", "/pipe", "/never", order=order)
    assert note == (
        f"main keeps /model/deep/cache; main does not keep /bin: {OF_IMAGE}; main does not keep /pipe: {NO_KIND}; "
        f"main does not keep /never: {ABSENT}"
    )
    shown = "cat /found /model/deep/cache/kernel; stat -c '%u:%g %a' /model; readlink /model/deep/cache/out"
    assert await env.sh(new, shown) == "compiled\ncompiled\n7:8 1711\n/proc/1/root\n"
    left = "test ! -e /lost && test ! -e /bin/more-of-it && ls -A / | grep kubemend || echo so"
    assert await env.sh(new, left) == "so\n"
