"""Measure the time from a fault to the next training step, for each way to restart a trainer.

One pod after another runs the same trainer with JAX on the CPU, which compiles its step, saves a checkpoint every ten
steps, and fails several times. The ways: a Job, kubelet's restart, a loop in the container, kubemend's swap without and
with the component ``caches``, and kubemend's launcher with a warm spare.

Prints JSON. ``first_step_s`` is the median time from the fault to the first step that is finished after it,
``new_step_s`` to the first that had not been finished before, ``stages_s`` are the stages up to the first step.
``ratio_to_process`` is to the loop in the container, in the same run. ``total_s`` is from the first step of all to the
last new step.

``--write docs/steps.json`` saves it, and ``python -m hack.steps_doc`` generates the page and the picture from that.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click
import yaml

from bench import all as bench_all
from bench.rig import is_ready
from bench.steps import arms, recovery
from hack.devnode import controlplane, kubernetes, node
from kubemend.common import aio, logs
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

_CACHES: Final = Path(__file__).resolve().parents[2] / "daemonset" / "components" / "caches" / "policy.yaml"
_POLICIES: Final = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}
_VOLUME: Final = "kubemend-cache"
_GROUPS: Final = {"jobs": "batch"}
_BASE: Final = "process"
_SECONDS: Final = 60.0
_RECOVERY_SECONDS: Final = 400.0  # the Job controller's backoff is 10 s, 20 s, 40 s, …
_LOOK_AGAIN: Final = 0.2

Json = dict[str, Any]


async def measure(wanted: tuple[str, ...], plan: arms.Plan) -> Json:
    """Run the arms one after another, and return the figures."""
    found: Json = {}
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kubemend-bench-")))
        dev = await stack.enter_async_context(node.DevNode.named("bench-steps", options=node.Options(gpus=0)))
        await stack.enter_async_context(controlplane.on(dev.kubeconfig, directory / "control-plane"))
        api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
        await stack.enter_async_context(_ready_agent(dev))
        await _have_caches(api, dev.name)
        for arm in arms.ARMS:
            if arm.name in wanted:
                records = directory / arm.name
                records.mkdir()
                found[arm.name] = {"what": arm.what, **await _run(api, arm, plan, node_name=dev.name, records=records)}
        kinds = dev.kinds
    if base := found.get(_BASE):
        for each in found.values():
            each["ratio_to_process"] = round(each["first_step_s"] / base["first_step_s"], 3)
    return {
        "node": kinds,
        "versions": {"Kubernetes": kubernetes.version()},
        "layers": plan.layers,
        "steps_between_faults": plan.every,
        "ways": found,
    }


@contextlib.asynccontextmanager
async def _ready_agent(dev: node.DevNode) -> AsyncIterator[None]:
    async with dev.agent() as agent:
        async with asyncio.timeout(_SECONDS):
            while not await is_ready(agent):  # noqa: ASYNC110 - /readyz is polled
                await asyncio.sleep(_LOOK_AGAIN)
        yield


async def _have_caches(api: kube.KubeClient, node_name: str) -> None:
    """Install the component caches, and wait until it is in force."""
    for made in yaml.safe_load_all(_CACHES.read_text()):
        await api.create(paths.collection(_POLICIES[made["kind"]], group="admissionregistration.k8s.io"), made)
    arm = next(each for each in arms.ARMS if not each.own_cache)
    plan = arms.Plan(Path(sys.executable), layers=1, faults=0, every=1, spare_after="0s")
    resource, pod = arms.objects(arm, plan, node=node_name, records=Path("/"))
    collection = f"{paths.collection(resource, namespace='default')}?dryRun=All"
    async with asyncio.timeout(_SECONDS):
        async for _ in aio.ticks(period=_LOOK_AGAIN):
            created = await api.create(collection, pod)
            if any(each["name"] == _VOLUME for each in created["spec"]["volumes"]):
                return


async def _run(api: kube.KubeClient, arm: arms.Arm, plan: arms.Plan, *, node_name: str, records: Path) -> Json:
    """Run one arm's trainer until it has recovered from its last fault. Raises TimeoutError with its last record."""
    resource, made = arms.objects(arm, plan, node=node_name, records=records)
    collection = paths.collection(resource, namespace="default", group=_GROUPS.get(resource, ""))
    await api.create(collection, made)
    file = records / "train.records"
    found: list[recovery.Record] = []
    while len(recovery.recoveries(found)) < plan.faults:
        before = len(recovery.recoveries(found))
        try:
            async with asyncio.timeout(_RECOVERY_SECONDS):
                while len(recovery.recoveries(found)) == before:
                    await asyncio.sleep(_LOOK_AGAIN)
                    found = recovery.parse(file.read_text()) if file.exists() else []
        except TimeoutError as error:
            raise TimeoutError(f"{arm.name}: no recovery {before + 1}; its last records: {found[-3:]}") from error
    await _delete(api, f"{collection}/{arm.name}")
    steps = [each.at for each in found if each.stage == "step"]
    return {**recovery.figures(recovery.recoveries(found)), "total_s": round(steps[-1] - steps[0], 1)}


async def _delete(api: kube.KubeClient, path: str) -> None:
    """Delete the object with its pods, and wait until all are gone."""
    await api.delete(path, options={"propagationPolicy": "Foreground"})
    async with asyncio.timeout(_SECONDS):
        while True:
            try:
                await api.get(path)
            except errors.NotFoundError:
                return
            await asyncio.sleep(_LOOK_AGAIN)


_NAMES: Final = tuple(arm.name for arm in arms.ARMS)


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Only this way; may be repeated.")
@click.option("--layers", default=32, show_default=True, help="Layers of the model: more take longer to compile.")
@click.option("--faults", default=3, show_default=True, help="Faults of each trainer, one after another.")
@click.option("--every", default=95, show_default=True, help="Steps between faults.")
@click.option("--spare-after", default="2s", show_default=True, help="When a trainer gets its spare.")
@click.option(
    "--python",
    default=sys.executable,
    show_default=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A Python that has flax, jax, optax and orbax-checkpoint (pip install 'kubemend[steps]').",
)
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON to this file.")
def main(
    only: tuple[str, ...], python: Path, write: Path | None, *, layers: int, faults: int, every: int, spare_after: str
) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    plan = arms.Plan(python, layers=layers, faults=faults, every=every, spare_after=spare_after)
    machine = bench_all.machine()
    text = json.dumps({"machine": machine, **asyncio.run(measure(only or _NAMES, plan))}, indent=2)
    if write is not None:
        write.write_text(f"{text}\n")
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
