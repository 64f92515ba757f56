"""JobSets that are refused, each with a similar one that is allowed: one table for all validators.

The API server refuses a new one by its definition or by kubemend's admission policy, and the controller finds a problem
in it: three texts in three languages that must agree.
"""

from dataclasses import dataclass
from typing import Any, Final

from tests.unit.jobset.written import (
    IN_ORDER,
    LETTERS,
    Json,
    changed,
    claiming,
    claims_apart,
    coordinated,
    depending,
    failing,
    in_place,
    jobset,
    replicated,
)


@dataclass(frozen=True)
class Case:
    """``refused`` and ``allowed`` differ in the subject of the rule. ``answer`` is part of the API server's answer.

    ``path`` is where the controller finds the problem.
    """

    name: str
    refused: Json
    allowed: Json
    answer: str
    path: str


def _many(count: int) -> tuple[Json, ...]:
    return tuple(replicated(f"w{index}") for index in range(count))


def _rule(action: str = "RestartJobSet", **more: Any) -> Json:
    return {"action": action, **more}


JOBS: Final = "spec.replicatedJobs"
RULES: Final = "spec.failurePolicy.rules"
CLAIMS: Final = "spec.volumeClaimPolicies"

BY_POLICY: Final[tuple[Case, ...]] = (
    Case(
        "too many replicated Jobs",
        jobset(*_many(201)),
        jobset(*_many(200)),
        answer="keep to 200",
        path=JOBS,
    ),
    Case(
        "too many Jobs",
        jobset(replicated("a", replicas=10_000), replicated("b", replicas=10_001)),
        jobset(replicated("a", replicas=10_000), replicated("b", replicas=10_000)),
        answer="keep to 20000",
        path=JOBS,
    ),
    Case(
        "fewer than no pods at once",
        jobset(replicated(spec={"parallelism": -1})),
        jobset(replicated(spec={"parallelism": 0})),
        answer="cannot be negative",
        path=f"{JOBS}[0].template.spec.parallelism",
    ),
    Case(
        "fewer than no pods",
        jobset(replicated(spec={"completions": -1})),
        jobset(replicated(spec={"completions": 0})),
        answer="cannot be negative",
        path=f"{JOBS}[0].template.spec.completions",
    ),
    Case(
        "too many pods",
        jobset(replicated(replicas=2, spec={"parallelism": 2**30})),
        jobset(replicated(replicas=2, spec={"parallelism": 2**30 - 1})),
        answer="too many pods together",
        path=f"{JOBS}[0].replicas",
    ),
    *(
        Case(
            f"a group called {group[:12]}",
            jobset(replicated(groupName=group)),
            jobset(replicated(groupName=allowed)),
            answer="a groupName is no DNS label",
            path=f"{JOBS}[0].groupName",
        )
        for group, allowed in (
            ("Big", "big"),
            ("9lives", "lives9"),
            ("a.b", "a-b"),
            ("a-", "a"),
            (LETTERS[:64], LETTERS[:63]),
        )
    ),
    Case(
        "Jobs with too long names",  # LETTERS-workers-10
        jobset(replicated(replicas=11), name=LETTERS[:53]),
        jobset(replicated(replicas=10), name=LETTERS[:53]),
        answer="Jobs are called JOBSET-NAME-INDEX",
        path=f"{JOBS}[0].name",
    ),
    Case(
        "Jobs with names that begin with a digit",
        jobset(name="1train"),
        jobset(name="t1rain"),
        answer="Jobs are called JOBSET-NAME-INDEX",
        path=f"{JOBS}[0].name",
    ),
    Case(
        "a replicated Job with a name in capitals",
        jobset(replicated("Workers")),
        jobset(replicated("workers")),
        answer="Jobs are called JOBSET-NAME-INDEX",
        path=f"{JOBS}[0].name",
    ),
    Case(
        "pods with too long names",  # LETTERS-workers-0-10-abcde
        jobset(replicated(spec={"completions": 11, "parallelism": 1}), name=LETTERS[:45]),
        jobset(replicated(spec={"completions": 10, "parallelism": 1}), name=LETTERS[:45]),
        answer="pods are called JOBSET-NAME-INDEX-PODINDEX-SUFFIX",
        path=f"{JOBS}[0].name",
    ),
    Case(
        "Indexed pods with too long names",
        jobset(replicated(spec={"completions": 11, "completionMode": "Indexed"}), name=LETTERS[:45]),
        jobset(replicated(spec={"completions": 11, "completionMode": "NonIndexed"}), name=LETTERS[:45]),
        answer="pods are called JOBSET-NAME-INDEX-PODINDEX-SUFFIX",
        path=f"{JOBS}[0].name",
    ),
    Case(
        "the first depends on another",
        depending(("a", "b"), ("b", None)),
        depending(("b", None), ("a", "b")),
        answer="stands earlier in the list",
        path=f"{JOBS}[0].dependsOn[0].name",
    ),
    Case(
        "one depends on a later one",
        depending(("a", None), ("b", "c"), ("c", None)),
        depending(("a", None), ("c", None), ("b", "c")),
        answer="stands earlier in the list",
        path=f"{JOBS}[1].dependsOn[0].name",
    ),
    Case(
        "one depends on itself",
        depending(("a", None), ("b", "b")),
        depending(("a", None), ("b", "a")),
        answer="stands earlier in the list",
        path=f"{JOBS}[1].dependsOn[0].name",
    ),
    Case(
        "a dependency on an unknown replicated Job",
        depending(("a", None), ("b", "x")),
        depending(("a", None), ("b", None)),
        answer="stands earlier in the list",
        path=f"{JOBS}[1].dependsOn[0].name",
    ),
    *(
        Case(
            f"in place with {key} {value}",
            in_place(**{key: value}),
            in_place(),
            answer=answer,
            path=f"{JOBS}[0].template.spec.{path}",
        )
        for key, value, answer, path in (
            ("backoffLimit", None, "set template.spec.backoffLimit to 2147483647", "backoffLimit"),
            ("backoffLimit", 6, "set template.spec.backoffLimit to 2147483647", "backoffLimit"),
            ("podReplacementPolicy", None, "set template.spec.podReplacementPolicy", "podReplacementPolicy"),
            ("podReplacementPolicy", "TerminatingOrFailed", "podReplacementPolicy", "podReplacementPolicy"),
            ("completions", None, "run all at once", "completions"),
            ("completions", 3, "run all at once", "completions"),
            ("parallelism", None, "run all at once", "completions"),
        )
    ),
    *(
        Case(
            f"a subdomain called {subdomain[:12]}",
            jobset(network={"subdomain": subdomain}),
            jobset(network={"subdomain": allowed}),
            answer="no Service can be called so",
            path="spec.network.subdomain",
        )
        for subdomain, allowed in (
            ("a.b", "a-b"),
            ("Net", "net"),
            ("1net", ""),
            (LETTERS[:64], LETTERS[:63]),
        )
    ),
    Case(
        "a coordinator in an unknown replicated Job",
        coordinated(pod={"replicatedJob": "driver"}),
        coordinated(),
        answer="there is no such replicated Job",
        path="spec.coordinator.replicatedJob",
    ),
    *(
        Case(
            f"a coordinator with {key} {refused}",
            coordinated(pod={key: refused}),
            coordinated(pod={key: allowed}),
            answer=f"spec.coordinator.{key}",
            path=f"spec.coordinator.{key}",
        )
        for key, refused, allowed in (
            ("jobIndex", 2, 1),
            ("jobIndex", -1, 0),
            ("podIndex", 2, 1),
            ("podIndex", -1, 0),
        )
    ),
    *(
        Case(
            f"a coordinator without an index ({', '.join(spec) or 'no fields'})",
            coordinated(spec=spec),
            coordinated(spec={**spec, "completionMode": "Indexed", "completions": 2}),
            answer="its pods have no index",
            path="spec.coordinator.replicatedJob",
        )
        for spec in ({}, {"parallelism": 2}, {"completions": 2, "completionMode": "NonIndexed"})
    ),
    Case(
        "a coordinator with too long an address",  # LETTERS-workers-0-0.LETTERS
        coordinated(LETTERS[:26]),
        coordinated(LETTERS[:25]),
        answer="does not fit in a label",
        path="spec.coordinator",
    ),
    Case(
        "a coordinator with too long an address in a subdomain",  # train-workers-0-0.LETTERS
        changed(coordinated(), lambda spec: spec.update(network={"subdomain": LETTERS[:46]})),
        changed(coordinated(), lambda spec: spec.update(network={"subdomain": LETTERS[:45]})),
        answer="does not fit in a label",
        path="spec.coordinator",
    ),
    Case(
        "a success policy with an unknown target",
        jobset(successPolicy={"operator": "All", "targetReplicatedJobs": ["workers", "driver"]}),
        jobset(successPolicy={"operator": "All", "targetReplicatedJobs": ["workers"]}),
        answer="spec.successPolicy.targetReplicatedJobs",
        path="spec.successPolicy.targetReplicatedJobs[1]",
    ),
    Case(
        "too long patterns",
        failing(
            *(_rule(onJobFailureMessagePatterns=["a" * 4095]) for _ in range(2)),
            _rule(onJobFailureMessagePatterns=[""]),
        ),
        failing(*(_rule(onJobFailureMessagePatterns=["a" * 4095]) for _ in range(2))),
        answer="patterns are too long",
        path=RULES,
    ),
    Case(
        "too many rules",
        failing(*(_rule() for _ in range(101))),
        failing(*(_rule() for _ in range(100))),
        answer="keep to 100 rules",
        path=RULES,
    ),
    *(
        Case(
            f"a rule called {name[:12]}",
            failing(_rule(name=name)),
            failing(_rule(name=allowed)),
            answer="cannot be part of a condition's reason",
            path=f"{RULES}[0].name",
        )
        for name, allowed in (
            ("1st", "first"),
            ("a-b", "a_b"),
            ("a,", "a,b"),
            ("a:", ""),
            (LETTERS[:129], LETTERS[:128]),
            ("a\n", "a"),
        )
    ),
    Case(
        "two rules of a name",
        failing(_rule(name="a"), _rule(name="b"), _rule(name="a")),
        failing(_rule(name="a"), _rule(name="b"), _rule(name="A"), _rule(), _rule()),
        answer="several rules have the same name",
        path=f"{RULES}[2].name",
    ),
    Case(
        "a reason that Jobs do not have",
        failing(_rule(onJobFailureReasons=["DeadlineExceeded", "Bored"])),
        failing(
            _rule(
                onJobFailureReasons=[
                    "BackoffLimitExceeded",
                    "DeadlineExceeded",
                    "FailedIndexes",
                    "MaxFailedIndexesExceeded",
                    "PodFailurePolicy",
                ],
            )
        ),
        answer="Jobs never fail for such a reason",
        path=f"{RULES}[0].onJobFailureReasons[1]",
    ),
    Case(
        "a failure policy with an unknown target",
        failing(_rule(targetReplicatedJobs=["driver"])),
        failing(_rule(targetReplicatedJobs=["workers"])),
        answer="targetReplicatedJobs names no replicated Job",
        path=f"{RULES}[0].targetReplicatedJobs[0]",
    ),
    *(
        Case(
            f"too many Jobs for {action}",
            failing(_rule("FailJobSet"), _rule(action), jobs=(replicated(replicas=1025),)),
            failing(_rule("FailJobSet"), _rule(action), jobs=(replicated(replicas=1024),)),
            answer="too many to count restarts of each",
            path=f"{JOBS}[0].replicas",
        )
        for action in ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
    ),
    Case(
        "too many claims",
        claims_apart(25, 26),
        claims_apart(25, 25),
        answer="keep to 50 templates",
        path=CLAIMS,
    ),
    *(
        Case(
            f"a claim called {name[:12] or 'nothing'}",
            claiming(name),
            claiming(allowed),
            answer="no claim can be called so",
            path=f"{CLAIMS}[0].templates[0].metadata.name",
        )
        for name, allowed in (("Data", "data"), ("-a", "1-a"), ("a..b", "a.b"), ("", "a"), ("a\n", "a"))
    ),
    Case(
        "a claim with too long a name",  # LETTERS-train
        claiming(LETTERS[:58]),
        claiming(LETTERS[:57]),
        answer="too long with that of the JobSet",
        path=f"{CLAIMS}[0].templates[0].metadata.name",
    ),
    Case(
        "two claims of a name",
        claiming("data", "data"),
        claiming("data", "models"),
        answer="several claims have the same name",
        path=f"{CLAIMS}[0].templates[1].metadata.name",
    ),
    Case(
        "a claim that no container mounts",
        claiming("data", "models", mounts=("data",)),
        claiming("data", "models"),
        answer="no container mounts a claim",
        path=f"{CLAIMS}[0].templates[1].metadata.name",
    ),
    Case(
        "a claim and a volume of a name",
        claiming("data", volumes=("cache", "data")),
        claiming("data", volumes=("cache",)),
        answer="a volume and a claim of the same name",
        path=f"{JOBS}[0].template.spec.template.spec.volumes[1].name",
    ),
)
"""Refused by ``daemonset/jobset/policy.yaml``."""

BY_DEFINITION: Final[tuple[Case, ...]] = (
    Case(
        "in order and by dependsOn",
        changed(depending(("a", None), ("b", "a")), lambda spec: spec.update(startupPolicy=IN_ORDER)),
        changed(depending(("a", None), ("b", None)), lambda spec: spec.update(startupPolicy=IN_ORDER)),
        answer="StartupPolicy and DependsOn APIs are mutually exclusive",
        path="spec.startupPolicy",
    ),
    Case(
        "a claim elsewhere",
        claiming("data", namespace="there"),
        claiming("data", namespace=""),
        answer="namespace cannot be set for VolumeClaimPolicies templates",
        path=f"{CLAIMS}[0].templates[0].metadata.namespace",
    ),
)
"""Refused by a rule in CEL of ``daemonset/jobset/crd.yaml``."""

BY_SCHEMA: Final[tuple[Case, ...]] = (
    Case(
        "two replicated Jobs of a name",
        jobset(replicated("a"), replicated("a")),
        jobset(replicated("a"), replicated("b")),
        answer="Duplicate value",
        path=f"{JOBS}[1].name",
    ),
    *(
        Case(f"{path} {value!r}", refused, allowed, answer=answer, path=path)
        for path, value, refused, allowed, answer in (
            (
                f"{JOBS}[0].replicas", -1, jobset(replicated(replicas=-1)), jobset(replicated(replicas=0)),
                "greater than or equal to 0",
            ),
            (f"{JOBS}[0].replicas", "1", jobset(replicated(replicas="1")), jobset(), "must be of type integer"),
            (f"{JOBS}[0].replicas", 1.5, jobset(replicated(replicas=1.5)), jobset(), "must be of type integer"),
            ("spec.suspend", "true", jobset(suspend="true"), jobset(suspend=True), "must be of type boolean"),
            (
                "spec.successPolicy.operator", "Some",
                jobset(successPolicy={"operator": "Some"}), jobset(successPolicy={"operator": "Any"}),
                "Unsupported value",
            ),
            (
                "spec.startupPolicy.startupPolicyOrder", "Random",
                jobset(startupPolicy={"startupPolicyOrder": "Random"}), jobset(startupPolicy=IN_ORDER),
                "Unsupported value",
            ),
            (
                f"{RULES}[0].action", "Panic",
                failing(_rule("Panic")), failing(_rule("FailJobSet")), "Unsupported value",
            ),
            (f"{RULES}[0].action", None, failing({"name": "a"}), failing(_rule(name="a")), "Required value"),
            (
                "spec.failurePolicy.restartStrategy", "Hope",
                failing(restartStrategy="Hope"), failing(restartStrategy="BlockingRecreate"), "Unsupported value",
            ),
            (
                f"{JOBS}[1].dependsOn[0].status", "Fine",
                jobset(replicated("a"), replicated("b", dependsOn=[{"name": "a", "status": "Fine"}])),
                jobset(replicated("a"), replicated("b", dependsOn=[{"name": "a", "status": "Complete"}])),
                "Unsupported value",
            ),
            (
                f"{CLAIMS}[0].retentionPolicy.whenDeleted", "Sell",
                jobset(volumeClaimPolicies=[{"retentionPolicy": {"whenDeleted": "Sell"}}]),
                jobset(volumeClaimPolicies=[{"retentionPolicy": {"whenDeleted": "Retain"}}]),
                "Unsupported value",
            ),
            (
                "spec.ttlSecondsAfterFinished", -1,
                jobset(ttlSecondsAfterFinished=-1), jobset(ttlSecondsAfterFinished=0), "greater than or equal to 0",
            ),
            (
                f"{JOBS}[0].template.spec.template.spec.nodeSelector[a]", 1,
                jobset(replicated(pod={"nodeSelector": {"a": 1}})),
                jobset(replicated(pod={"nodeSelector": {"a": "1"}})),
                "must be of type string",
            ),
        )
    ),
)  # fmt: skip
"""Refused by the schema of ``daemonset/jobset/crd.yaml``."""

CASES: Final = (*BY_POLICY, *BY_DEFINITION, *BY_SCHEMA)
