"""What the API server fills in when an object is created: for the kinds and fields that our programs read. Pure.

Sources: ``SetDefaults_*`` in pkg/apis/{core,batch}/v1 and the strategies' ``PrepareForCreate`` of Kubernetes 1.36.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Object = dict[str, Any]

_MOST: Final = 2**31 - 1


def filled(plural: str, obj: Object) -> Object:
    """Return a new object of a built-in resource, which has its metadata, with what it does not say."""
    fill = _BY_PLURAL.get(plural)
    return obj if fill is None else fill(obj)


def _pod(pod: Object) -> Object:
    spec = {"enableServiceLinks": True, **_pod_spec(pod.get("spec") or {})}  # which a template's default is not
    return {**pod, "spec": spec, "status": {"phase": "Pending"}}


def _namespace(namespace: Object) -> Object:
    return {**namespace, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}


def _job(job: Object) -> Object:
    """Fill a Job in, with the selector and labels by which its pods are told from all others."""
    given, metadata = job.get("spec") or {}, job["metadata"]
    spec: Object = {
        "parallelism": 1,
        **({"completions": 1} if given.get("parallelism") is None else {}),
        "backoffLimit": 6 if given.get("backoffLimitPerIndex") is None else _MOST,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "Failed" if given.get("podFailurePolicy") else "TerminatingOrFailed",
        "manualSelector": False,
        **{key: value for key, value in given.items() if value is not None},
    }
    template = spec.get("template") or {}
    if not spec["manualSelector"]:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]}}
        template = _labelled(template, name=metadata["name"], uid=metadata["uid"])
    if _labels(given.get("template") or {}) and not metadata.get("labels"):
        metadata = {**metadata, "labels": template["metadata"]["labels"]}  # the very map, so with what was added
    spec["template"] = {**template, "spec": _pod_spec(template.get("spec") or {})}
    return {**job, "metadata": metadata, "spec": spec, "status": {}}


def _labelled(template: Object, *, name: str, uid: str) -> Object:
    labels = {"job-name": name, "controller-uid": uid}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    metadata = template.get("metadata") or {}
    return {**template, "metadata": {**metadata, "labels": {**labels, **_labels(template)}}}


def _labels(template: Object) -> Object:
    return (template.get("metadata") or {}).get("labels") or {}


def _service(service: Object) -> Object:
    """Fill a Service in; an address is given to none, so that only headless ones are as they would be."""
    spec = {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", **service["spec"]}
    return {**service, "spec": spec, "status": {"loadBalancer": {}}}


def _claim(claim: Object) -> Object:
    return {**claim, "spec": {"volumeMode": "Filesystem", **claim["spec"]}, "status": {"phase": "Pending"}}


_BY_PLURAL: Final[Mapping[str, Callable[[Object], Object]]] = {
    "pods": _pod,
    "namespaces": _namespace,
    "jobs": _job,
    "services": _service,
    "persistentvolumeclaims": _claim,
}


def _pod_spec(spec: Object) -> Object:
    defaulted = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        **spec,
    }
    for kind in ("initContainers", "containers"):
        if kind in spec:
            defaulted[kind] = [_container(container) for container in spec[kind]]
    return defaulted


def _container(container: Object) -> Object:
    floating = ":" not in container.get("image", "").rpartition("/")[2] or container["image"].endswith(":latest")
    return {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if floating else "IfNotPresent",
        **container,
    }
