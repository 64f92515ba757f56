"""Build the headless Service that gives pods their DNS names. Pure."""

from typing import Any

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec.model import JobSet


def service(jobset: JobSet) -> dict[str, Any]:
    """Return the Service's body; its name is the subdomain. It is needed only with ``network.dns_hostnames``.

    Source: createHeadlessSvcIfNecessary. As there, an existing one is neither checked nor fixed. The label is
    kubemend's, for the Informer: a deleted Service is created again.
    """
    network = jobset.spec.network
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": network.subdomain,
            "namespace": jobset.namespace,
            "labels": {naming.JOBSET_NAME: jobset.name},
            "ownerReferences": [naming.controller_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {naming.JOBSET_NAME: jobset.name},
            "publishNotReadyAddresses": network.publish_not_ready,
        },
    }
