"""Names, indexes and addresses, as upstream has them."""

import hashlib
from typing import Any

import pytest

from kubemend.common import gangs
from kubemend.controller.jobset.children import naming
from tests.unit.jobset.manifests import jobset, replicated


def test_job_name_has_jobset_replicated_job_and_index() -> None:
    assert naming.job_name("train", "workers", 3) == "train-workers-3"


def test_claim_name_begins_with_template() -> None:
    assert naming.claim_name("train", "data") == "data-train"


def test_job_key_is_sha1_of_namespace_and_name() -> None:
    assert naming.job_key("ml", "train-w-0") == hashlib.sha1(b"ml/train-w-0", usedforsecurity=False).hexdigest()
    assert len(naming.job_key("ml", "train-w-0")) == 40


def test_job_keys_differ_between_namespaces() -> None:
    assert naming.job_key("ml", "train-w-0") != naming.job_key("dev", "train-w-0")


def test_namespaced_job_fits_a_label() -> None:
    assert naming.namespaced_job("ml", "train-w-0") == "ml_train-w-0"


@pytest.mark.parametrize(
    ("coordinator", "network", "address"),
    [
        (None, {}, None),
        ({"replicatedJob": "w"}, {}, "train-w-0-0.train"),
        ({"replicatedJob": "w", "jobIndex": 1, "podIndex": 2}, {}, "train-w-1-2.train"),
        ({"replicatedJob": "w"}, {"subdomain": "net"}, "train-w-0-0.net"),
    ],
)
def test_coordinator_has_address(
    coordinator: dict[str, Any] | None, network: dict[str, Any], address: str | None
) -> None:
    assert naming.coordinator(jobset(network=network, coordinator=coordinator)) == address


def test_indexes_continue_across_replicated_jobs() -> None:
    jobs = jobset(replicated("a", replicas=2), replicated("b", replicas=3), replicated("c")).spec.replicated_jobs
    assert [naming.first_index(jobs, name) for name in ("a", "b", "c")] == [0, 2, 5]
    assert naming.replicas(jobs) == 6


def test_group_has_its_own_indexes() -> None:
    jobs = jobset(
        replicated("a", replicas=2, groupName="one"),
        replicated("b", replicas=3, groupName="two"),
        replicated("c", replicas=4, groupName="one"),
    ).spec.replicated_jobs
    one = naming.group(jobs, "one")
    assert [each.name for each in one] == ["a", "c"]
    assert naming.first_index(one, "c") == 2
    assert naming.replicas(one) == 6


def test_gang_label_is_the_jobsets_name() -> None:
    assert naming.JOBSET_NAME == gangs.JOBSET_NAME
