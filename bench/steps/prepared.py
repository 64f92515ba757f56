"""What a spare does before the fault: ``kubemend_run.py --prepare prepared:prepare``.

It opens no device: JAX trains on the CPU here. On a GPU a spare can prepare the host's part only.
"""

import functools

import model


@functools.cache
def prepare() -> model.Compiled:
    """Return the model with its compiled step, after one step. The second call finds what the first has made."""
    found = model.compiled(1, 0, over=lambda _: None)
    _, _, value = found.step(found.weights, found.state, *found.data)
    value.block_until_ready()
    return found
