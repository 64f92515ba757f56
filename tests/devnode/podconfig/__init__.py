"""Build pods as kubelet would, for tests on a runtime without a kubelet (``tests.devnode.pods``).

Sandbox and container configs with kubelet's labels, annotations, hash, cgroups and directories, after kubelet's
``kuberuntime`` package. The values that the product reads back are checked against a real kubelet's in
``tests/contract/kubelet``.
"""
