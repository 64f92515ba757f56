"""The behaviour of the real Job controller that kubemend relies on: Indexed Jobs' pods, counts, and ends of Jobs.

It recreates a failed pod after ten seconds, then twenty. Tests wait for that only where necessary.
"""

import asyncio
import re

import pytest

from tests.contract.jobs import env as benches
from tests.contract.jobs.env import JobEnv


async def test_each_index_gets_a_labelled_pod(env: JobEnv) -> None:
    job = await env.create()
    await env.until_live(0, 1, 2)
    for at, pod in (await env.live()).items():
        metadata, spec = pod["metadata"], pod["spec"]
        assert re.fullmatch(rf"train-{at}-[a-z0-9]{{5}}", metadata["name"])
        assert metadata["labels"] == {
            "app": "x",
            "job-name": "train",
            "controller-uid": job["metadata"]["uid"],
            "batch.kubernetes.io/job-name": "train",
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
            benches.INDEX: str(at),
        }
        assert metadata["annotations"] == {"note": "y", benches.INDEX: str(at)}
        assert metadata["finalizers"] == [benches.FINALIZER]
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", job["metadata"]["uid"], True)
        assert spec["hostname"] == f"train-{at}"
        (variable,) = spec["containers"][0]["env"]
        assert variable["name"] == "JOB_COMPLETION_INDEX"
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{benches.INDEX}']"
    status = await env.until(lambda reported: reported.get("active") == 3)
    assert (status["ready"], status["terminating"]) == (0, 0)
    assert "startTime" in status


async def test_a_job_is_complete_when_all_indexes_have_succeeded(env: JobEnv) -> None:
    await env.create(count=4)
    live = await env.until_live(0, 1, 2, 3)
    await env.say(live[3], "Running")
    await env.until(lambda reported: reported.get("ready") == 1)
    for at in (2, 0, 1):
        await env.say(live[at], "Succeeded", exit_code=0)
    status = await env.until(lambda reported: reported.get("succeeded") == 3 and reported["active"] == 1)
    assert status["completedIndexes"] == "0-2"
    assert "completionTime" not in status
    await env.say(live[3], "Succeeded", exit_code=0)
    status = await env.until(lambda reported: "Complete" in benches.conditions(reported))
    reason = ("True", "CompletionsReached")
    assert benches.conditions(status) == {"SuccessCriteriaMet": reason, "Complete": reason}
    assert (status["succeeded"], status["completedIndexes"]) == (4, "0-3")
    assert status.get("active", 0) == 0
    assert "completionTime" in status
    found = await env.pods()
    assert not any(benches.is_tracked(each) for each in found)


async def test_a_job_fails_beyond_its_backoff_limit_and_its_pods_go(env: JobEnv) -> None:
    await env.create(backoffLimit=0)
    live = await env.until_live(0, 1, 2)
    await env.say(live[0], "Failed", exit_code=1)
    status = await env.until(lambda reported: "FailureTarget" in benches.conditions(reported))
    assert benches.message(status, "FailureTarget") == "Job has reached the specified backoff limit"
    await env.until_live()
    status = await env.status()
    assert "Failed" not in benches.conditions(status), "not before its pods have ended"
    for at in (1, 2):
        await env.end(live[at])
    status = await env.until(lambda reported: "Failed" in benches.conditions(reported))
    assert benches.conditions(status)["Failed"] == ("True", "BackoffLimitExceeded")
    assert status.get("active", 0) == 0


@pytest.mark.parametrize("limit", [0, 3])
async def test_restarts_of_containers_use_the_backoff_limit_up(env: JobEnv, limit: int) -> None:
    await env.create(restart_policy="OnFailure", backoffLimit=limit)
    live = await env.until_live(0, 1, 2)
    await env.say(live[0], "Running", restarts=1)
    if limit:
        await env.until(lambda reported: reported.get("ready") == 1)
        assert "FailureTarget" not in benches.conditions(await env.status())
        await env.say(live[2], "Running", restarts=2)
    status = await env.until(lambda reported: "FailureTarget" in benches.conditions(reported))
    assert benches.conditions(status)["FailureTarget"] == ("True", "BackoffLimitExceeded")


async def test_by_default_a_pod_that_ends_is_replaced_before_it_has_ended(env: JobEnv) -> None:
    await env.create(podReplacementPolicy="TerminatingOrFailed")
    live = await env.until_live(0, 1, 2)
    await env.say(live[1], "Running")
    await env.remove(live[1], grace=None)
    again = await env.until_live(0, 1, 2)
    assert again[1]["metadata"]["uid"] != live[1]["metadata"]["uid"]


async def test_with_the_policy_failed_no_index_has_two_pods(env: JobEnv) -> None:
    await env.create(podReplacementPolicy="Failed")
    live = await env.until_live(0, 1, 2)
    await env.say(live[1], "Running")
    await env.remove(live[1], grace=None)
    await env.until(lambda reported: reported.get("terminating") == 1 and reported.get("active") == 2)
    assert sorted(await env.live()) == [0, 2]
    assert sorted(await env.live()) == [0, 2]


async def test_policy_failed_does_not_replace_a_force_deleted_unfailed_pod(
    env: JobEnv,
) -> None:
    """As on a lost node: no kubelet reports its failure, and its finalizer keeps it."""
    await env.create(podReplacementPolicy="Failed")
    live = await env.until_live(0, 1, 2)
    await env.say(live[1], "Running")
    await env.remove(live[1], grace=0)
    await env.until(lambda reported: reported.get("terminating") == 1)
    assert benches.is_tracked(await env.pod(live[1]))
    assert sorted(await env.live()) == [0, 2]


async def test_failure_policy_fails_the_job_by_an_exit_code(env: JobEnv) -> None:
    codes = {"containerName": "main", "operator": "In", "values": [42]}
    await env.create(podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": codes}]})
    live = await env.until_live(0, 1, 2)
    await env.say(live[2], "Failed", exit_code=42)
    status = await env.until(lambda reported: "FailureTarget" in benches.conditions(reported))
    assert benches.conditions(status)["FailureTarget"] == ("True", "PodFailurePolicy")
    name = f"{env.namespace}/{live[2]['metadata']['name']}"
    said = f"Container main for pod {name} failed with exit code 42 matching FailJob rule at index 0"
    assert benches.message(status, "FailureTarget") == said


async def test_failure_policy_does_not_count_what_it_ignores(env: JobEnv) -> None:
    pattern = [{"type": "DisruptionTarget", "status": "True"}]
    await env.create(backoffLimit=0, podFailurePolicy={"rules": [{"action": "Ignore", "onPodConditions": pattern}]})
    live = await env.until_live(0, 1, 2)
    await env.disrupt(live[0])
    await env.say(live[0], "Failed", exit_code=137)
    again = await env.until_live(0, 1, 2)
    assert again[0]["metadata"]["uid"] != live[0]["metadata"]["uid"]
    assert (await env.status()).get("failed", 0) == 0


async def test_index_that_failed_too_often_fails_alone(env: JobEnv) -> None:
    await env.create(backoffLimitPerIndex=0)
    live = await env.until_live(0, 1, 2)
    assert live[0]["metadata"]["annotations"][benches.FAILURES] == "0"
    await env.say(live[1], "Failed", exit_code=1)
    status = await env.until(lambda reported: reported.get("failedIndexes") == "1")
    assert sorted(await env.live()) == [0, 2]
    assert "FailureTarget" not in benches.conditions(status)
    for at in (0, 2):
        await env.say(live[at], "Succeeded", exit_code=0)
    status = await env.until(lambda reported: "Failed" in benches.conditions(reported))
    assert benches.conditions(status)["Failed"] == ("True", "FailedIndexes")
    assert (status["completedIndexes"], status["failedIndexes"], status["succeeded"]) == ("0,2", "1", 2)


async def test_suspended_job_has_no_pods_and_restarts_when_resumed(env: JobEnv) -> None:
    await env.create()
    live = await env.until_live(0, 1, 2)
    await env.say(live[0], "Running")
    await env.until(lambda reported: reported.get("ready") == 1)
    await env.change(suspend=True)
    await env.until_live()
    for pod in live.values():
        await env.end(pod)
    status = await env.until(lambda reported: benches.conditions(reported).get("Suspended") == ("True", "JobSuspended"))
    assert "startTime" not in status
    status = await env.until(lambda reported: not reported.get("active") and not reported.get("terminating"))
    assert status.get("failed", 0) == 0
    await env.change(suspend=False)
    again = await env.until_live(0, 1, 2)
    assert not {each["metadata"]["uid"] for each in again.values()} & {
        each["metadata"]["uid"] for each in live.values()
    }
    status = await env.until(lambda reported: benches.conditions(reported).get("Suspended") == ("False", "JobResumed"))
    assert "startTime" in status


async def test_a_job_that_is_created_suspended_has_no_pods(env: JobEnv) -> None:
    await env.create(suspend=True)
    status = await env.until(lambda reported: "Suspended" in benches.conditions(reported))
    assert "startTime" not in status
    assert await env.pods() == []


async def test_deleted_in_the_foreground_it_goes_after_its_pods(env: JobEnv) -> None:
    await env.create(count=2)
    live = await env.until_live(0, 1)
    await env.delete(policy="Foreground")
    await env.until_live()
    job = await env.job()
    assert job["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert len(await env.pods()) == 2
    for pod in live.values():
        await env.end(pod)
    await env.until_gone()
    assert await env.pods() == []


async def test_deleted_in_the_background_its_pods_go_after_it(env: JobEnv) -> None:
    await env.create(count=2)
    live = await env.until_live(0, 1)
    await env.delete(policy="Background")
    await env.until_gone()
    await env.until_live()
    await asyncio.gather(*(env.end(pod) for pod in live.values()))
    for pod in live.values():
        await env.until_gone(f"/api/v1/namespaces/{env.namespace}/pods/{pod['metadata']['name']}")
