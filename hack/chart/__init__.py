"""Generate the Helm chart in ``charts/kubemend`` from the kustomizations in ``daemonset``."""
