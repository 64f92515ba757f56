"""The column of graceful node shutdown: kubelet learns from logind that its machine shuts down, and ends all pods."""
