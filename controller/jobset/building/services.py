"""The headless Service that gives pods their names in DNS. Pure."""

from typing import Any

from controller.jobset import naming
from controller.jobset.building import owning
from controller.jobset.model import JobSet


def service(jobset: JobSet) -> dict[str, Any]:
    """Return the Service's body; its name is the subdomain. It is wanted with ``network.dns_hostnames`` alone.

    Source: createHeadlessSvcIfNecessary. Like there, one that is there already is neither checked nor mended. The label
    is ours, to watch it by: one that is deleted comes back.
    """
    network = jobset.spec.network
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": network.subdomain,
            "namespace": jobset.namespace,
            "labels": {naming.JOBSET_NAME: jobset.name},
            "ownerReferences": [owning.controller(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {naming.JOBSET_NAME: jobset.name},
            "publishNotReadyAddresses": network.publish_not_ready,
        },
    }
