"""What only tests add to the dev node (``hack.devnode``): programs beside it, and pods that run without a kubelet."""
