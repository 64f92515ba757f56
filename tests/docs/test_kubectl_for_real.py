"""Run the docs' ``kubectl`` commands that need no node against a real API server on which kubemend is installed.

Their changes are not kept (``--dry-run=server``): the pages describe alternatives, not one sequence.
"""

import asyncio
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from kubemend.common.kube import client, paths
from kubemend.controller.restarts import names
from kubemend.controller.restarts import objects as rounds
from tests import eventually
from tests.contract.api import admission_calls, installation, objects
from tests.contract.api.installation import Cluster
from tests.unit.cli import builders
from tests.unit.daemonset import kubectl
from tests.unit.docs import kubectl_words, pages
from tests.unit.docs.commands import Command

SECONDS: Final = 120.0
TIMED: Final = "--timeout=60s"
ROUND: Final = "llama-2-03bc"
JOBSET: Final = "pytorch-ddp"
JOBSETS: Final = "jobsets.jobset.x-k8s.io"
PLACEHOLDERS: Final[Mapping[str, str]] = {
    "NAME": JOBSET,
    "NODE": "node-a",
    "POD": "trainer-0",
    "jobset.yaml": f"examples/{JOBSET}.yaml",
    "kubemend.io/gang-name=NAME": f"kubemend.io/gang-name={JOBSET}",
    "kubemend.io/gang-name=llm": f"kubemend.io/gang-name={JOBSET}",
    "llm": JOBSET,
    "restart/llama-x7k2p": f"restart/{ROUND}",
}
SUSPENDED: Final = (
    '{"status":{"conditions":[{"type":"Suspended","status":"True","reason":"SuspendedJobs","message":"",'
    '"lastTransitionTime":"2026-01-31T08:00:00Z"}]}}'
)
CHANGES: Final = frozenset({"annotate", "apply", "create", "delete", "label", "patch", "set env", "taint"})
NEEDS_A_NODE: Final = frozenset({"debug", "exec", "logs", "rollout status"})
"""A kubelet answers these, or must have done something."""
EXAMPLES: Final = sorted((pages.ROOT / "examples").glob("*.yaml"))
OF_PROMETHEUS: Final = "podmonitors,prometheusrules"
WITH_PODS_THAT_RUN: Final = "job/first"
"""Tested on a whole cluster (tests/installation)."""


def documented() -> Mapping[str, Command]:
    """Return the commands that are complete, and that an API server alone can carry out."""
    typed = pages.of("kubectl")
    kept = {}
    for place, said in kubectl_words.understood(typed).items():
        command = typed[place]
        is_short = command.mentioned and (command.words[-1] in ("-k", "-l") or ends_with_its_verb(said))
        is_elsewhere = {OF_PROMETHEUS, WITH_PODS_THAT_RUN} & {*said.arguments}
        if said.verb not in NEEDS_A_NODE and not is_elsewhere and not is_short:
            kept[place] = command
    return kept


def ends_with_its_verb(said: kubectl_words.Said) -> bool:
    """Return whether a command line lacks the object of its verb."""
    return not said.arguments and not {"directory", "file"} & said.flags.keys()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ("--runtime-config=resource.k8s.io/v1beta2=true", "--feature-gates=DRADeviceTaintRules=true")
    with installation.installed(tmp_path_factory.mktemp("docs"), options=options) as made:
        asyncio.run(fill(made))
        made.kubectl("apply", "--server-side", "--kustomize", str(installation.DAEMONSET / "jobset"))
        asyncio.run(eventually.true(lambda: JOBSETS in made.kubectl("api-resources", "--output=name"), look_again=0.5))
        for example in EXAMPLES:
            made.kubectl("apply", "--server-side", "--filename", str(example))
        made.kubectl("patch", "jobset", JOBSET, "--subresource", "status", "--type", "merge", "--patch", SUSPENDED)
        yield made


async def fill(made: Cluster) -> None:
    """Create all objects that the pages read."""
    async with made.administrator() as api:
        await api.create(paths.NODES, {"metadata": {"name": "node-a"}})
        ours = objects.pod("trainer-0", node="node-a", labels={"app.kubernetes.io/component": "controller"})
        ours["spec"] |= {"serviceAccountName": installation.CONTROLLER, "automountServiceAccountToken": False}
        await api.create(objects.pods("kubemend"), ours)
        await api.create(objects.pods("default"), objects.pod("trainer-0", node="node-a"))
        condition = {"status": {"conditions": [objects.condition("kubemend.io/DevicesHealthy", reason="Healthy")]}}
        await api.patch_status(paths.pod("default", "trainer-0"), condition)
        spare = {"status": {"conditions": [objects.condition("kubemend.io/WarmSpare", reason="Ready")]}}
        await api.patch_status(paths.pod("default", "trainer-0"), spare)
        await api.patch_status(f"{paths.NODES}/node-a", condition)
        taint = {"key": "kubemend.io/device-failure", "value": "Xid79", "effect": "NoSchedule"}
        await api.patch(f"{paths.NODES}/node-a", {"spec": {"taints": [taint]}})
        leases = paths.collection("leases", namespace="kubemend", group="coordination.k8s.io")
        await api.create(leases, {"metadata": {"name": "kubemend-controller"}})
        scene = admission_calls.Scene("default", api)
        event = admission_calls.event(scene, node="node-a")
        await api.create(paths.collection("events", namespace="default"), event)
    async with made.account(installation.CONTROLLER) as controller:  # only it writes the annotations of a round
        await restarted(controller)


async def restarted(api: client.KubeClient) -> None:
    """Create a round that has ended."""
    reported = builders.restart(ROUND, gang=JOBSET, attempt=2)
    metadata = {key: value for key, value in reported["metadata"].items() if key in ("name", "labels", "annotations")}
    await api.create(names.collection("default"), {**reported, "metadata": metadata})
    status = rounds.completed(builders.DONE, generation=1, now=0.0)
    await api.patch_status(names.path("default", ROUND), {"status": status}, content_type=client.Patch.MERGE)


DOCUMENTED: Final = documented()


@pytest.mark.parametrize("command", DOCUMENTED.values(), ids=DOCUMENTED)
def test_command_succeeds(command: Command, cluster: Cluster, tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text(command.given)
    words = [PLACEHOLDERS.get(word, word) for word in command.words[1:]]
    words = [str(given) if word == "-" else word for word in words]
    said = kubectl_words.read(("kubectl", *words))
    if said.verb in CHANGES:
        words += ["--dry-run=server", *(("--server-side", "--force-conflicts") if said.verb == "apply" else ())]
    if said.verb == "wait":
        words.append(TIMED)
    assert run(words, kubeconfig=cluster.server.kubeconfig)


def run(words: Sequence[str], *, kubeconfig: Path) -> str:
    """Return kubectl's output; it must have found the requested objects."""
    line = [kubectl.program(), "--kubeconfig", str(kubeconfig), *words]
    ran = subprocess.run(line, cwd=pages.ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr.startswith(("error", "Error", "No resources")), ran.stderr
    return ran.stdout
