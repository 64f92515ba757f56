"""Read from kubelet which containers hold which devices."""
