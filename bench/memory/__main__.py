"""Measure the memory that agent and controller need for pods: normal ones, and ones as large as possible.

Each view runs in a process of its own that has loaded the modules of the real one, in a memory cgroup with the limit of
the manifests where one can be created (as root). All pods are listed, then each of them changes once more. Prints JSON.

Goals: nothing is killed, no pod is lost; exit code 1 otherwise.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import yaml

from bench.faults import memory_cgroup
from bench.faults.reporting import NotTriedError
from bench.memory import pods, server
from bench.memory.pods import Crowd

_ROOT: Final = Path(__file__).parents[2]
_MANIFESTS: Final = {"agent": "daemonset/base/daemonset.yaml", "controller": "daemonset/controller/deployment.yaml"}
_UNITS: Final = {"Mi": 2**20, "Gi": 2**30}
_FEW, _MANY = 1000, 5000
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Trial:
    """Describe a crowd of pods, and whose views read it."""

    role: str
    what: str
    crowd: Crowd


TRIALS: Final = (
    Trial("agent", "110 pods with 1 MB of environment", Crowd(110, _MB, pods.environment)),
    Trial("agent", "800 pods with 250 KB of others' annotations", Crowd(800, 250_000, pods.annotations_of_others)),
    Trial("agent", "800 pods with 250 KB of kubemend's annotations", Crowd(800, 250_000, pods.our_annotations)),
    Trial("controller", "500 pods with 1 MB of environment", Crowd(500, _MB, pods.environment)),
    Trial("controller", "2000 pods with 250 KB of kubemend's annotations", Crowd(2000, 250_000, pods.our_annotations)),
)


def limit_of(role: str) -> int:
    """Return the bytes that the manifests allow to the agent or to the controller."""
    for document in yaml.safe_load_all((_ROOT / _MANIFESTS[role]).read_text("utf-8")):
        if document["kind"] in ("DaemonSet", "Deployment"):
            text = document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            return int(text[:-2]) * _UNITS[text[-2:]]
    raise LookupError(f"{_MANIFESTS[role]} has no limit")


async def tried(trial: Trial, *, limit: int | None = None) -> dict[str, Any]:
    """Have a process read a crowd; ``limit`` in bytes. Raises NotTriedError where no cgroup can be created."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        name = f"kubemend-bench-{uuid.uuid4().hex[:8]}"
        cgroup = stack.enter_context(memory_cgroup.made(name)) if limit is not None else None
        async with server.serving(trial.crowd, directory=Path(directory)) as kubeconfig:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.memory.views", trial.role, str(kubeconfig)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_ROOT,
            )
            try:
                if cgroup is not None and limit is not None:
                    cgroup.limit(limit)
                    cgroup.add(child.pid)
                out, _ = await child.communicate(b"\n")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        found = {
            "role": trial.role,
            "what": trial.what,
            **(json.loads(out.splitlines()[-1]) if child.returncode == 0 else {}),
        }
        if cgroup is not None and limit is not None:
            found |= {"limit_mib": limit >> 20, "most_mib": cgroup.most() >> 20, "killed": cgroup.kills()}
        return found | {"lost": trial.crowd.count - found.get("pods", 0)}


async def of_a_thousand(role: str) -> float:
    """Return the MiB for a thousand normal pods."""
    few, many = [await tried(Trial(role, "", Crowd(count))) for count in (_FEW, _MANY)]
    more = float(many["in_the_end_mib"] - few["in_the_end_mib"])
    return round(more * 1000 / (_MANY - _FEW), 2)


async def measure(only: str = "") -> Mapping[str, Any]:
    """Try everything, or only the crowds that are described by this text."""
    trials = []
    for trial in (each for each in TRIALS if only in each.what):
        try:
            trials.append(await tried(trial, limit=limit_of(trial.role)))
        except NotTriedError as error:
            trials.append({**await tried(trial), "not_limited": str(error)})
    thousand = {} if only else {role: await of_a_thousand(role) for role in _MANIFESTS}
    return {"bench": "memory", "mib_of_1000_usual_pods": thousand, "trials": trials}


def _troubles(found: Mapping[str, Any]) -> Iterator[str]:
    for trial in found["trials"]:
        if trial["lost"] or trial.get("killed"):
            yield f"{trial['role']}, {trial['what']}: {trial}"


@click.command()
@click.option("--only", default="", help="Only the crowds whose description has this text.")
def main(only: str) -> None:
    """Measure the memory that agent and controller need for pods, and print JSON."""
    found = asyncio.run(measure(only))
    print(json.dumps(found, indent=2))
    if troubles := list(_troubles(found)):
        sys.exit("\n".join(troubles))


if __name__ == "__main__":
    main()
