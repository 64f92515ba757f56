"""Pods that ask for a domain, by any combination of annotations: gates are removed exactly where they are set."""

import itertools
from typing import Any

import pytest

from kubemend.controller.jobset import children
from kubemend.controller.jobset.placement import exclusive, reading
from tests.unit.jobset.manifests import jobset, replicated

KNOWN = ("alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector")
SOME = [dict.fromkeys(keys, "x") for keys in ((), KNOWN[:1], KNOWN[1:], KNOWN)]


def is_gated(body: dict[str, Any]) -> bool:
    """Return whether the pods of a Job have kubemend's gate."""
    gates = body["spec"]["template"]["spec"].get("schedulingGates", ())
    return "kubemend.io/exclusive-placement" in {each["name"] for each in gates}


@pytest.mark.parametrize(("of_jobset", "own", "of_pods"), list(itertools.product(SOME, SOME, SOME)))
def test_only_pod_that_needs_domain_is_gated(
    of_jobset: dict[str, str], own: dict[str, str], of_pods: dict[str, str]
) -> None:
    given = replicated(template={"metadata": {"annotations": own}}, pod_metadata={"annotations": of_pods})
    owner = jobset(given, annotations=of_jobset)
    job = owner.spec.replicated_jobs[0]
    body = children.job(owner, job, 0, attempt=0)
    is_sent = "alpha.jobset.sigs.k8s.io/namespaced-job" in body["spec"]["template"]["spec"].get("nodeSelector", {})
    assert (exclusive.wants_domain(owner, job), exclusive.wants_labelled_nodes(owner, job)) == (is_gated(body), is_sent)
    assert is_sent == (set(KNOWN) <= body["metadata"]["annotations"].keys())
    found = reading.pod(as_pod(body))
    assert found is not None
    assert is_gated(body) == exclusive.waits(found)
    assert is_gated(body) == (bool(found.topology) and not is_sent)


def test_exclusive_without_topology_has_no_effect() -> None:
    owner = jobset(annotations={KNOWN[0]: ""})
    assert not is_gated(children.job(owner, owner.spec.replicated_jobs[0], 0, attempt=0))


def as_pod(body: dict[str, Any]) -> dict[str, Any]:
    """Return a pod of this Job, as its controller creates it."""
    template = body["spec"]["template"]
    name = body["metadata"]["name"]
    labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
    meta = {**template["metadata"], "namespace": "ml", "name": f"{name}-0", "uid": "u", "labels": labels}
    return {"metadata": meta, "spec": template["spec"]}
