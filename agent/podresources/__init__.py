"""Who holds which device, as kubelet tells it."""
