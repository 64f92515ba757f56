"""Read a JobSet's ``spec``, with the defaults in effect. Pure.

The defaults are those of upstream's webhook and schema (``pkg/webhooks/jobset_webhook.go``, ``jobset_types.go``), so
that a JobSet has the same meaning if neither is installed.
"""

from collections.abc import Sequence

from kubemend.controller.jobset.spec import fields, templates
from kubemend.controller.jobset.spec.model import (
    Action,
    ClaimPolicy,
    Coordinator,
    Dependency,
    DependencyStatus,
    FailurePolicy,
    FailureRule,
    Json,
    Network,
    Operator,
    ReplicatedJob,
    RestartStrategy,
    Retention,
    Spec,
    StartupOrder,
    SuccessPolicy,
)


def spec(given: Json, name: str) -> Spec:
    """Return the spec of the JobSet with this ``name``. Raises InvalidFieldError."""
    jobs = fields.objects(given.get("replicatedJobs"), "spec.replicatedJobs")
    startup = fields.mapping(given.get("startupPolicy"), "spec.startupPolicy")
    order, at = startup.get("startupPolicyOrder"), "spec.startupPolicy.startupPolicyOrder"
    claims = fields.objects(given.get("volumeClaimPolicies"), "spec.volumeClaimPolicies")
    return Spec(
        replicated_jobs=tuple(_replicated_job(each, f"spec.replicatedJobs[{i}]") for i, each in enumerate(jobs)),
        network=_network(fields.mapping(given.get("network"), "spec.network"), name),
        success=_success(fields.mapping(given.get("successPolicy"), "spec.successPolicy")),
        failure=_failure(given.get("failurePolicy")),
        startup=fields.choice(order, at, of=StartupOrder, default=StartupOrder.ANY),
        suspend=fields.flag(given.get("suspend"), "spec.suspend", default=False),
        coordinator=_coordinator(given.get("coordinator")),
        managed_by=fields.text(given.get("managedBy"), "spec.managedBy") or None,
        ttl_seconds=fields.number(given.get("ttlSecondsAfterFinished"), "spec.ttlSecondsAfterFinished"),
        claim_policies=tuple(_claim_policy(each, f"spec.volumeClaimPolicies[{i}]") for i, each in enumerate(claims)),
    )


def _replicated_job(given: Json, where: str) -> ReplicatedJob:
    replicas = fields.number(given.get("replicas"), f"{where}.replicas", low=fields.INT32_MIN)
    dependencies = fields.objects(given.get("dependsOn"), f"{where}.dependsOn")
    return ReplicatedJob(
        name=fields.name(given.get("name"), f"{where}.name"),
        replicas=1 if replicas is None else replicas,
        template=templates.effective(given.get("template"), f"{where}.template"),
        group=fields.text(given.get("groupName"), f"{where}.groupName") or "default",
        depends_on=tuple(_dependency(each, f"{where}.dependsOn[{i}]") for i, each in enumerate(dependencies)),
    )


def _dependency(given: Json, where: str) -> Dependency:
    return Dependency(
        on=fields.name(given.get("name"), f"{where}.name"),
        status=fields.choice(given.get("status"), f"{where}.status", of=DependencyStatus),
    )


def _network(given: Json, name: str) -> Network:
    where = "spec.network"
    publish = given.get("publishNotReadyAddresses")
    return Network(
        subdomain=fields.text(given.get("subdomain"), f"{where}.subdomain") or name,
        dns_hostnames=fields.flag(given.get("enableDNSHostnames"), f"{where}.enableDNSHostnames", default=True),
        publish_not_ready=fields.flag(publish, f"{where}.publishNotReadyAddresses", default=True),
    )


def _success(given: Json) -> SuccessPolicy:
    where = "spec.successPolicy"
    return SuccessPolicy(
        operator=fields.choice(given.get("operator"), f"{where}.operator", of=Operator, default=Operator.ALL),
        targets=fields.texts(given.get("targetReplicatedJobs"), f"{where}.targetReplicatedJobs"),
    )


def _failure(value: object) -> FailurePolicy | None:
    if value is None:
        return None
    where = "spec.failurePolicy"
    given = fields.mapping(value, where)
    limit = fields.number(given.get("maxRestarts"), f"{where}.maxRestarts", low=fields.INT32_MIN)
    rules = fields.objects(given.get("rules"), f"{where}.rules")
    strategy, at = given.get("restartStrategy") or None, f"{where}.restartStrategy"  # "" is Go's absent value
    return FailurePolicy(
        max_restarts=limit or 0,
        rules=tuple(_rule(each, index) for index, each in enumerate(rules)),
        strategy=fields.choice(strategy, at, of=RestartStrategy, default=RestartStrategy.RECREATE),
    )


def _rule(given: Json, index: int) -> FailureRule:
    where = f"spec.failurePolicy.rules[{index}]"
    return FailureRule(
        name=fields.text(given.get("name"), f"{where}.name") or f"failurePolicyRule{index}",
        action=fields.choice(given.get("action"), f"{where}.action", of=Action),
        reasons=_each_once(fields.texts(given.get("onJobFailureReasons"), f"{where}.onJobFailureReasons")),
        patterns=fields.texts(given.get("onJobFailureMessagePatterns"), f"{where}.onJobFailureMessagePatterns"),
        targets=_each_once(fields.texts(given.get("targetReplicatedJobs"), f"{where}.targetReplicatedJobs")),
    )


def _each_once(given: Sequence[str]) -> tuple[str, ...]:
    """Remove duplicates, because each failed Job is compared with all of them."""
    return tuple(dict.fromkeys(given))


def _coordinator(value: object) -> Coordinator | None:
    if value is None:
        return None
    where, low = "spec.coordinator", fields.INT32_MIN
    given = fields.mapping(value, where)
    return Coordinator(
        replicated_job=fields.text(given.get("replicatedJob"), f"{where}.replicatedJob"),
        job_index=fields.number(given.get("jobIndex"), f"{where}.jobIndex", low=low) or 0,
        pod_index=fields.number(given.get("podIndex"), f"{where}.podIndex", low=low) or 0,
    )


def _claim_policy(given: Json, where: str) -> ClaimPolicy:
    found = fields.objects(given.get("templates"), f"{where}.templates")
    retention = fields.mapping(given.get("retentionPolicy"), f"{where}.retentionPolicy")
    at = f"{where}.retentionPolicy.whenDeleted"
    return ClaimPolicy(
        templates=tuple(_claim(each, f"{where}.templates[{i}]") for i, each in enumerate(found)),
        when_deleted=fields.choice(retention.get("whenDeleted"), at, of=Retention, default=Retention.DELETE),
    )


def _claim(given: Json, where: str) -> Json:
    """Return a PersistentVolumeClaim as it was written; validation reports a missing name."""
    meta = fields.mapping(given.get("metadata"), f"{where}.metadata")
    fields.text(meta.get("name"), f"{where}.metadata.name")
    fields.text(meta.get("namespace"), f"{where}.metadata.namespace")
    fields.strings(meta.get("labels"), f"{where}.metadata.labels")
    fields.strings(meta.get("annotations"), f"{where}.metadata.annotations")
    fields.mapping(given.get("spec"), f"{where}.spec")
    return given
