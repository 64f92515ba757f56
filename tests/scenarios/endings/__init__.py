"""Pods that end, in all the ways that Kubernetes has: nothing of them is restarted."""
