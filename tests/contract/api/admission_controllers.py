"""Cases of what the controller's token allows and does not allow."""

from typing import Any, Final

from kubemend.common.kube import paths
from kubemend.controller.restarts import names
from tests.contract.api import objects, restarts
from tests.contract.api.admission_calls import (
    THERE,
    Call,
    Case,
    Json,
    changes_event,
    condition,
    counts,
    deleted,
    job,
    makes,
    owned,
    patched,
    records_event,
    removes,
    status,
    tainted,
)

CLAIM: Final = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
STOLEN: Final = {"kubernetes.io/service-account.name": "kubemend-agent"}
TAINT: Final = {"key": "kubemend.io/device-failure", "value": "Xid79", "effect": "NoSchedule"}
JOBSETS: Final = {"group": "jobset.x-k8s.io", "version": "v1alpha2"}

NO_OTHER_TAINT: Final = "kubemend-controller-nodes' denied request: the controller sets and removes the taint"
NOTHING_BUT: Final = "kubemend-controller-pods' denied request: the controller may write only a pod's conditions"
NOT_OPTED_IN: Final = (
    "kubemend-controller-pods' denied request: the controller marks and deletes only pods that opted in: pod "
)
ONLY_ITS_TAINT: Final = "kubemend-controller-nodes' denied request: the controller changes only its own taint of a node"
OF_A_JOBSET: Final = "denied request: the controller may change only {} whose controlling owner is a JobSet"
NO_RIGHT: Final = 'User "system:serviceaccount:kubemend:kubemend-controller" cannot {} resource "{}"'

NO_OTHER_METADATA: Final = "no labels, annotations, owners or finalizers of pods, except for the Job's finalizer"
ONLY_OF_A_JOB: Final = "the Job's finalizer only of a Job's pods with the condition DisruptionTarget"
TRACKING: Final = "batch.kubernetes.io/job-tracking"
UNTRACK: Final = "$deleteFromPrimitiveList/finalizers"

REACHES: Final = "with access to their node"
APP_ARMOR: Final = "container.apparmor.security.beta.kubernetes.io"


def reaching(
    name: str, *, where: str = "", container: Json | None = None, annotations: Json | None = None, **pod: Any
) -> Call:
    """Return the creation of a Job of a JobSet whose pods have these fields and annotations."""
    made = job(name, pod=pod, container=container, annotations=annotations, **owned())
    return makes("jobs", made, group="batch", where=where)


def probed(host: str) -> Json:
    """Return the fields of a container whose probes and hooks are requests to this host; empty: to its pod."""
    http, tcp = {"httpGet": {"port": 80, "host": host}}, {"tcpSocket": {"port": 80, "host": host}}
    return {"livenessProbe": http, "startupProbe": tcp, "lifecycle": {"preStop": http}}


CASES = (
    Case("marks a pod", "controller", status("asked", condition("DisruptionTarget"))),
    Case("marks a pod for its device", "controller", status("asked", condition("kubemend.io/DeviceFailure"))),
    Case("marks a pod of a dead node", "controller",
         status("asked", {**condition("DisruptionTarget"), "phase": "Failed"})),
    Case("keeps a Job from counting a pod", "controller",
         status("tracked", condition("DisruptionTarget"), **{UNTRACK: [TRACKING]})),
    Case("has a Job count a pod again", "controller",
         status("marked", condition("DisruptionTarget", "False"), finalizers=[TRACKING])),
    Case("deletes a pod that opted in", "controller", deleted("asked")),
    Case("deletes a pod of a namespace that opted in", "controller",
         lambda api, scene: api.delete(paths.pod("opted-in", "owned"), options={"gracePeriodSeconds": 1})),
    Case("begins a round", "controller",
         lambda api, scene: api.create(names.collection(scene.namespace), restarts.new_round("team-a").body("x"))),
    Case("its Lease", "controller",
         makes("leases", {"metadata": {"name": "kubemend-controller"}}, group="coordination.k8s.io", where="kubemend")),
    Case("reviews a token", "controller", lambda api, _: api.create(paths.TOKEN_REVIEWS, {"spec": {"token": "x"}})),
    Case("a Job of a JobSet", "controller", makes("jobs", job("new", **owned()), group="batch")),
    Case("ends a Job of a JobSet", "controller", removes("jobs", "of-a-jobset", group="batch")),
    Case("a JobSet's Service", "controller",
         makes("services", {"metadata": {"name": "js", **owned()}, "spec": {"clusterIP": "None"}})),
    Case("a JobSet's volume claim", "controller",
         makes("persistentvolumeclaims",
               {"metadata": {"name": "c", "labels": {"jobset.sigs.k8s.io/jobset-name": "js"}}, "spec": CLAIM})),
    Case("a JobSet of kubemend that has ended", "controller", removes("jobsets", "ours", **JOBSETS)),
    Case("lets a waiting pod go", "controller",
         patched("waiting", {"spec": {"nodeSelector": {"rack": "1"}, "schedulingGates": [
             {"name": "kubemend.io/exclusive-placement", "$patch": "delete"}]}})),
    Case("taints a node whose device failed", "controller", tainted(THERE, TAINT)),
    Case("counts in an Event of its own", "controller", counts("jobset")),
    Case("a pod is ready", "controller", status("asked", condition("Ready")), "and no others"),
    Case("a pod's phase", "controller", status("asked", {"phase": "Failed"}), NOTHING_BUT),
    Case("a pod has succeeded", "controller",
         status("asked", {**condition("DisruptionTarget"), "phase": "Succeeded"}), NOTHING_BUT),
    Case("a pod's labels by its status", "controller", status("asked", {}, labels={"app": "db"}),
         NO_OTHER_METADATA),
    Case("a Job's finalizer without the reason", "controller", status("tracked", {}, **{UNTRACK: [TRACKING]}),
         ONLY_OF_A_JOB),
    Case("a Job's finalizer with a mark that is no longer so", "controller",
         status("tracked", condition("DisruptionTarget", "False"), **{UNTRACK: [TRACKING]}), ONLY_OF_A_JOB),
    Case("a Job's finalizer of another's pod", "controller",
         status("asked", condition("DisruptionTarget"), finalizers=[TRACKING]), ONLY_OF_A_JOB),
    Case("another finalizer", "controller",
         status("tracked", condition("DisruptionTarget"), **{UNTRACK: [TRACKING, "example.com/wait"]}),
         NO_OTHER_METADATA),
    Case("a pod that did not opt in", "controller", deleted("owned"), NOT_OPTED_IN),
    Case("marks a pod that did not opt in", "controller", status("owned", condition("DisruptionTarget")), NOT_OPTED_IN),
    Case("a pod that no controller recreates", "controller", deleted("alone"), "that a controller owns and recreates"),
    Case("a pod that does not wait", "controller", patched("there", {"metadata": {"labels": {"app": "db"}}}),
         "changes only pods that wait for exclusive placement"),
    Case("the image of a pod that waits", "controller",
         patched("waiting", {"spec": {"containers": [{"name": "trainer", "image": "miner:1"}]}}),
         "may only set the placement of a waiting pod"),
    Case("another's gate", "controller",
         patched("waiting", {"spec": {"schedulingGates": [{"name": "quota.example.com/q", "$patch": "delete"}]}}),
         "remove its own gate"),
    Case("a node's labels", "controller", patched(THERE, {"metadata": {"labels": {"zone": "x"}}}),
         "no labels, annotations, finalizers or owners of nodes"),
    Case("drains a node", "controller", patched(THERE, {"spec": {"unschedulable": True}}), ONLY_ITS_TAINT),
    Case("another taint", "controller", tainted(THERE, {**TAINT, "key": "a.b/c"}),
         NO_OTHER_TAINT),
    Case("evicts by its taint", "controller", tainted(THERE, {**TAINT, "effect": "NoExecute"}),
         NO_OTHER_TAINT),
    Case("removes another's taint", "controller",
         patched("node-tainted", {"spec": {"taints": [TAINT]}}), NO_OTHER_TAINT),
    Case("a Job without an owner", "controller", makes("jobs", job("x"), group="batch"), OF_A_JOBSET.format("jobs")),
    Case("a Job of a CronJob", "controller",
         makes("jobs", job("x", **owned(kind="CronJob", api_version="batch/v1")), group="batch"),
         OF_A_JOBSET.format("jobs")),
    Case("a Job whose pods lock memory", "controller",
         reaching("rdma", container={"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}})),
    Case("a Job that stays within the baseline", "controller",
         reaching("baseline", container={**probed(""), "securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}},
                  annotations={f"{APP_ARMOR}/trainer": "runtime/default"},
                  securityContext={"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "4096 87380 6291456"}],
                                   "seLinuxOptions": {"type": "container_engine_t"}})),
    Case("a privileged Job where that is allowed", "controller",
         reaching("allowed", where="reaching", container={"securityContext": {"privileged": True}})),
    Case("suspends a privileged Job of before", "controller",
         lambda api, scene: api.patch(f"{scene.of('jobs', 'batch')}/privileged", {"spec": {"suspend": True}})),
    Case("a privileged Job of an invented JobSet", "controller",
         reaching("x", container={"securityContext": {"privileged": True}}), REACHES),
    Case("a Job in the node's processes", "controller", reaching("x", hostPID=True), REACHES),
    Case("a Job in the node's network", "controller", reaching("x", hostNetwork=True), REACHES),
    Case("a Job in the node's files", "controller",
         reaching("x", volumes=[{"name": "root", "hostPath": {"path": "/"}}]), REACHES),
    Case("a Job that administers the system", "controller",
         reaching("x", container={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}), REACHES),
    Case("a Job whose init container is privileged", "controller",
         reaching("x", initContainers=[{"name": "i", "image": "a:1", "securityContext": {"privileged": True}}]),
         REACHES),
    Case("a Job of another SELinux type", "controller",
         reaching("x", container={"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}), REACHES),
    Case("a Job of another SELinux role", "controller",
         reaching("x", securityContext={"seLinuxOptions": {"role": "sysadm_r"}}), REACHES),
    Case("a Job with an unsafe sysctl", "controller",
         reaching("x", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), REACHES),
    Case("a Job without AppArmor by annotation", "controller",
         reaching("x", annotations={f"{APP_ARMOR}/trainer": "unconfined"}), REACHES),
    Case("a Job whose probe asks another host", "controller",
         reaching("x", container={"livenessProbe": probed("10.0.0.1")["livenessProbe"]}), REACHES),
    Case("a Job whose hook asks another host", "controller",
         reaching("x", container={"lifecycle": probed("10.0.0.1")["lifecycle"]}), REACHES),
    Case("a Job where the cluster lives", "controller",
         makes("jobs", job("x", **owned()), group="batch", where="kube-system"), "no JobSets in namespace kube-system"),
    Case("a Job in its own namespace", "controller",
         makes("jobs", job("x", **owned()), group="batch", where="kubemend"), "no JobSets in namespace kubemend"),
    Case("a Job of no JobSet", "controller", removes("jobs", "somebodys", group="batch"), OF_A_JOBSET.format("jobs")),
    Case("a Service without an owner", "controller",
         makes("services", {"metadata": {"name": "x"}, "spec": {"clusterIP": "None"}}), OF_A_JOBSET.format("services")),
    Case("a volume claim without an owner", "controller",
         makes("persistentvolumeclaims", {"metadata": {"name": "c"}, "spec": CLAIM}), "volume claims only for JobSets"),
    Case("a JobSet of another controller", "controller", removes("jobsets", "theirs", **JOBSETS),
         "may change only JobSets whose spec.managedBy"),
    Case("another Secret", "controller", makes("secrets", {"metadata": {"name": "x"}}, where="kubemend"),
         "the controller writes only kubemend/kubemend-hub-tls of secrets"),
    Case("a Secret that becomes another's token", "controller",
         makes("secrets", {"metadata": {"name": "kubemend-hub-tls", "annotations": STOLEN},
                           "type": "kubernetes.io/service-account-token"}, where="kubemend"),
         "must have the type Opaque"),
    Case("another Lease", "controller",
         makes("leases", {"metadata": {"name": "x"}}, group="coordination.k8s.io", where="kubemend"),
         "the controller writes only kubemend/kubemend-controller of leases"),
    Case("counts in another's Event", "controller", counts("upstream"), "only as kubemend and jobset"),
    Case("an Event of kubelet's", "controller", records_event(component="kubelet"), "only as kubemend and jobset"),
    Case("what its Event is about", "controller", changes_event(THERE, {"type": "Warning"}),
         "the controller may change only message, count and time"),
    Case("reads Secrets", "controller", lambda api, scene: api.list(scene.of("secrets", namespace="kubemend")),
         NO_RIGHT.format("list", "secrets")),
    Case("runs a pod", "controller", makes("pods", objects.pod("x")), NO_RIGHT.format("create", "pods")),
    Case("all pods", "controller", lambda api, scene: api.delete(scene.of("pods")),
         NO_RIGHT.format("deletecollection", "pods")),
    Case("a node", "controller", lambda api, _: api.delete(f"{paths.NODES}/{THERE}"),
         NO_RIGHT.format("delete", "nodes")),
)  # fmt: skip
