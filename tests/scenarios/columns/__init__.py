"""More columns of the restart matrix, on a real kubelet that relists freely, with an agent as it is installed."""
