"""Names, indexes and addresses, as upstream has them."""

import hashlib
from typing import Any

import pytest

from common import gangs
from controller.jobset import naming
from tests.unit.jobset.manifests import jobset, replicated


def test_a_job_is_called_after_its_jobset_its_replicated_job_and_its_index() -> None:
    assert naming.job_name("train", "workers", 3) == "train-workers-3"


def test_a_claim_is_called_after_its_template_first() -> None:
    assert naming.claim_name("train", "data") == "data-train"


def test_the_job_key_is_the_sha1_of_namespace_and_name() -> None:
    assert naming.job_key("ml", "train-w-0") == hashlib.sha1(b"ml/train-w-0", usedforsecurity=False).hexdigest()
    assert len(naming.job_key("ml", "train-w-0")) == 40


def test_jobs_of_one_name_in_two_namespaces_have_two_keys() -> None:
    assert naming.job_key("ml", "train-w-0") != naming.job_key("dev", "train-w-0")


def test_the_namespaced_job_fits_a_label() -> None:
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
def test_the_coordinator_s_address(
    coordinator: dict[str, Any] | None, network: dict[str, Any], address: str | None
) -> None:
    assert naming.coordinator(jobset(network=network, coordinator=coordinator)) == address


def test_indexes_go_on_from_one_replicated_job_to_the_next() -> None:
    jobs = jobset(replicated("a", replicas=2), replicated("b", replicas=3), replicated("c")).spec.replicated_jobs
    assert [naming.first_index(jobs, name) for name in ("a", "b", "c")] == [0, 2, 5]
    assert naming.replicas(jobs) == 6


def test_a_group_has_its_own_indexes() -> None:
    jobs = jobset(
        replicated("a", replicas=2, groupName="one"),
        replicated("b", replicas=3, groupName="two"),
        replicated("c", replicas=4, groupName="one"),
    ).spec.replicated_jobs
    one = naming.group(jobs, "one")
    assert [each.name for each in one] == ["a", "c"]
    assert naming.first_index(one, "c") == 2
    assert naming.replicas(one) == 6


def test_the_label_that_binds_a_gang_is_the_jobset_s_name() -> None:
    assert naming.JOBSET_NAME == gangs.JOBSET_NAME
