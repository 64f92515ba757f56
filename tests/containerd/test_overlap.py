"""A successor imports while its predecessor dies, and waits at the GPU driver's libraries, on the real containerd."""

import asyncio
import contextlib
import errno
import os
import pickle
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.hold import driver_hold, fanotify
from kubemend.agent.actuator.hold.driver_hold import NotHeldError, mark_libraries
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid
from kubemend.agent.restart import headroom, overlap
from kubemend.agent.restart.overlap import Obstacle
from tests import eventually
from tests.devnode.pods import Pods
from tests.environments.overlaps import CGROUPS, LIBRARY, PROC, OverlapEnv

pytestmark = pytest.mark.containerd

COMPATIBLE = "/usr/local/cuda-12/compat/libcuda.so.560.1"


@pytest.fixture
async def env(containerd: Containerd, tmp_path: Path) -> AsyncIterator[OverlapEnv]:
    async with OverlapEnv.on(containerd.node, directory=tmp_path) as made:
        yield made


async def test_successor_imports_and_waits_at_the_driver_until_the_devices_are_free(
    pods: Pods, env: OverlapEnv
) -> None:
    running = await pods.run(name="overlap", **env.pod())
    other = await pods.run(name="other", **env.pod())
    await env.has_run(running, "imports-0", "driver-0")
    swapping = asyncio.create_task(env.swap(running))
    await env.gates.reached.wait()
    await env.has_run(running, "imports-0", "driver-0", "imports-1")
    await env.waits_at_driver()
    old = await env.cri.container_status(ContainerId(running.containers["main"]))
    assert old.state is ContainerState.EXITED
    assert env.library.read_text() == "driver", "a program of the host does not wait"
    assert await env.sh(other, f"cat {LIBRARY}") == "driver", "another pod does not wait"
    assert env.runs(running) == ["imports-0", "driver-0", "imports-1"]
    env.gates.freed.set()
    outcome = await swapping
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (overlap.note("main", None),))
    await env.has_run(running, "imports-0", "driver-0", "imports-1", "driver-1")


async def test_successor_without_a_mounted_driver_stays_held_at_its_first_instruction(
    pods: Pods, env: OverlapEnv
) -> None:
    running = await pods.run(name="bare", **env.pod(mounts={}))
    await env.has_run(running, "imports-0", "driver-0")
    swapping = asyncio.create_task(env.swap(running))
    await env.gates.reached.wait()
    assert env.runs(running) == ["imports-0", "driver-0"]
    env.gates.freed.set()
    outcome = await swapping
    assert outcome.notes == (overlap.note("main", Obstacle.NO_DRIVER),)
    await env.has_run(running, "imports-0", "driver-0", "imports-1", "driver-1")


async def test_successor_near_the_pods_memory_limit_stays_held(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="small", **env.pod())
    await env.has_run(running, "imports-0", "driver-0")
    lines = (line.split(":", 2) for line in (PROC / str(await env.pid(running)) / "cgroup").read_text().splitlines())
    paths = {controllers: path.lstrip("/") for _, controllers, path in lines}
    group = (CGROUPS / "memory" / paths["memory"] if "memory" in paths else CGROUPS / paths[""]).parent
    (limit,) = [group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()]
    limit.write_text(str(headroom.IMPORTING_SUCCESSOR_BYTES))
    env.gates.freed.set()
    outcome = await env.swap(running)
    assert outcome.notes == (overlap.note("main", Obstacle.NO_ROOM),)
    await env.has_run(running, "imports-0", "driver-0", "imports-1", "driver-1")


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((), Obstacle.NO_DRIVER),
        (("/usr/lib/libnvidia-ml.so.550.1",), Obstacle.NO_DRIVER),
        ((LIBRARY, "/usr/local/cuda-12/"), Obstacle.FOREIGN_DRIVER),
        (("/opt/volume/", "/opt/volume/libcuda.so.1"), Obstacle.FOREIGN_DRIVER),
        (
            tuple(f"/usr/lib/libcuda.so.{number}" for number in range(driver_hold.MOST_LIBRARIES + 1)),
            Obstacle.TOO_MANY_LIBRARIES,
        ),
    ],
    ids=["none", "without-libcuda", "volume", "in-a-volume", "too-many"],
)
async def test_libraries_that_cannot_be_held_are_a_reason(
    pods: Pods, env: OverlapEnv, places: tuple[str, ...], expected: Obstacle
) -> None:
    mounts = {place: env.library.parent if place.endswith("/") else env.library for place in places}
    running = await pods.run(name="refused", **env.pod(mounts=mounts))
    before = descriptors()
    with pytest.raises(NotHeldError) as refused:
        await env.marked(running)
    assert refused.value.obstacle is expected
    assert descriptors() <= before, "no descriptor stays open"


async def test_process_with_the_hosts_mounts_is_not_held(env: OverlapEnv) -> None:
    with pytest.raises(NotHeldError, match="mounts of the host"):
        mark_libraries(env.runtime, env.runtime)


async def test_compatible_library_of_the_image_is_held_as_well(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="compat", **env.pod())
    await env.sh(running, f"mkdir -p $(dirname {COMPATIBLE}); echo own > {COMPATIBLE}; ln -s libcuda.so.560.1 x.so")
    group = await env.marked(running)
    reading = asyncio.create_task(env.sh(running, f"cat {COMPATIBLE}"))
    await waited_for(group)
    assert not reading.done()
    os.close(group)
    assert await reading == "own\n"


async def test_program_of_the_host_does_not_wait_in_the_containers_root(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="seen", **env.pod())
    hold = await env.held(running)
    reading = asyncio.create_task(env.sh(running, f"cat {LIBRARY}"))
    await eventually.true(lambda: hold.is_waited_for)
    seen = await asyncio.create_subprocess_exec(
        "cat", f"{PROC}/{await env.pid(running)}/root{LIBRARY}", stdout=asyncio.subprocess.PIPE
    )
    assert (await seen.communicate())[0] == b"driver"
    assert not reading.done()
    hold.release()
    assert await reading == "driver"


async def test_hold_ends_when_too_many_processes_wait(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="many", **env.pod())
    hold = await env.held(running)
    many = f"for i in $(seq {driver_hold.MOST_WAITING + 1}); do cat {LIBRARY} & done; wait"
    assert await env.sh(running, many) == "driver" * (driver_hold.MOST_WAITING + 1)
    assert not hold.is_waited_for
    await eventually.true(lambda: groups() == 0)


async def test_killed_processes_do_not_end_the_hold(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="killed", **env.pod())
    hold = await env.held(running)

    def reads(count: int) -> str:
        return f"for i in $(seq {count}); do cat {LIBRARY} > /dev/null & done"

    # The kernel withdraws an opening that is killed before the agent has read it, so the kill waits for the agent.
    kills = f"{reads(driver_hold.MOST_WAITING)}; until test -e /go; do sleep 0.01; done; kill -9 $(jobs -p); wait"
    reading = asyncio.create_task(env.sh(running, f"{kills}; {reads(8)}; wait"))
    await eventually.true(lambda: env.openings() == driver_hold.MOST_WAITING)
    await env.sh(running, "touch /go")
    await eventually.true(lambda: env.openings() == 8)
    assert groups() == 1, "the hold has not ended"
    hold.release()
    await reading


async def test_hold_ends_when_its_events_cannot_be_read(
    pods: Pods, env: OverlapEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    running = await pods.run(name="unread", **env.pod())
    await env.held(running)
    monkeypatch.setattr(fanotify, "permission_events", fails)
    assert await env.sh(running, f"cat {LIBRARY}") == "driver"
    await eventually.true(lambda: groups() == 0)


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def groups() -> int:
    """Return how many fanotify groups this process has."""
    found = 0
    for each in descriptors():
        with contextlib.suppress(FileNotFoundError):
            found += "fanotify" in str(Path(f"/proc/self/fd/{each}").readlink())
    return found


async def waited_for(group: int) -> None:
    """Wait until a process waits for a library."""
    loop, seen = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(group, seen.set)
    try:
        async with asyncio.timeout(60.0):
            await seen.wait()
    finally:
        loop.remove_reader(group)


AGENT = """
import select, sys
from pathlib import Path
from kubemend.agent.actuator.hold.driver_hold import mark_libraries
poll = select.poll()
poll.register(mark_libraries(Path(sys.argv[1]), Path(sys.argv[2])), select.POLLIN)
print("marked", flush=True)
poll.poll()
print("waited for", flush=True)
sys.stdin.read()
"""


async def test_death_of_the_agent_releases_the_driver(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="orphan", **env.pod())
    process = PROC / str(await env.pid(running))
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        AGENT,
        str(process),
        str(env.runtime),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"marked\n"
    reading = asyncio.create_task(env.sh(running, f"cat {LIBRARY}"))
    assert await agent.stdout.readline() == b"waited for\n"
    assert not reading.done()
    agent.kill()
    await agent.wait()
    assert await reading == "driver"


@pytest.mark.long
@pytest.mark.parametrize("waits", ["before-stop", ""])
async def test_agent_that_is_killed_leaves_the_successor_alone(
    containerd: Containerd, pods: Pods, env: OverlapEnv, tmp_path: Path, waits: str
) -> None:
    running = await pods.run(name="mortal", **env.pod())
    await env.has_run(running, "imports-0", "driver-0")
    pod, state = tmp_path / "pod", tmp_path / "state"
    pod.write_bytes(pickle.dumps(running))
    state.mkdir()
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.containerd.mortal_overlap"),
        *(containerd.node.name, str(state), str(pod), waits),
        stdout=asyncio.subprocess.PIPE,
    )
    assert agent.stdout is not None
    while await agent.stdout.readline() != b"waits\n":
        assert agent.returncode is None
    assert env.runs(running) == ["imports-0", "driver-0", "imports-1"]
    agent.kill()
    await agent.wait()
    await env.has_run(running, "imports-0", "driver-0", "imports-1", "driver-1")

    async def is_alone() -> bool:
        views = await env.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
        return {view.attempt for view in views if view.state is ContainerState.RUNNING} == {1}

    await eventually.true(is_alone)


async def test_every_hold_of_a_driver_ends(pods: Pods, env: OverlapEnv) -> None:
    running = await pods.run(name="late", **env.pod())
    holds = driver_hold.DriverHolds(at_most=0.2, threads=ThreadPoolExecutor(1))
    hold = await holds.arm(PROC / str(await env.pid(running)), runtime=env.runtime)
    assert await env.sh(running, f"cat {LIBRARY}") == "driver"
    assert not hold.is_waited_for
