"""Track the health of this node's devices: the verdict store, and the conditions and Events that follow from it."""
