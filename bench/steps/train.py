"""Train a small transformer on made-up data, and record when each stage on the way to a step is over.

It imports nothing of kubemend: it runs in a container of its own. Each line of the file ``$STEPS_RECORDS`` is a moment
(``time.monotonic_ns``), a stage and the number of the last finished step. The checkpoint is beside that file. Every
``$STEPS_FAULT_EVERY`` steps it ends as if by an exception, without any cleanup, ``$STEPS_FAULTS`` times in all. The
model has ``$STEPS_LAYERS`` layers: the compiler needs longer for more.
"""

import os
import time

RECORDS = os.environ["STEPS_RECORDS"]
CHECKPOINT = RECORDS + ".npz"
CHECKPOINT_EVERY = 10


def record(stage: str, step: int = 0) -> None:
    """Record that a stage is over."""
    with open(RECORDS, "a") as file:  # noqa: PTH123 - pathlib is an import
        file.write(f"{time.monotonic_ns()} {stage} {step}\n")


record("interpreter")

# What a trainer with JAX imports: the model's layers, the optimizer and the checkpoints.
import flax.linen  # noqa: E402, F401
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import orbax.checkpoint  # noqa: E402, F401

record("imports")

LAYERS, WIDTH, BATCH, LENGTH = int(os.environ["STEPS_LAYERS"]), 128, 4, 32
Weights = list[dict[str, jax.Array]]


def made() -> Weights:
    """Return new weights."""
    random = np.random.default_rng(0)
    shapes = {
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    return [
        {name: jnp.asarray(random.normal(0, 0.02, shape), jnp.float32) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]


def loss(weights: Weights, given: jax.Array, wanted: jax.Array) -> jax.Array:
    """Return the mean square error of the model's answer."""
    for layer in weights:
        scores = (given @ layer["query"]) @ jnp.swapaxes(given @ layer["key"], -1, -2)
        given = given + jax.nn.softmax(scores / WIDTH**0.5) @ (given @ layer["value"])
        given = (given - given.mean(-1, keepdims=True)) / (given.std(-1, keepdims=True) + 1e-5)
        given = given + jax.nn.gelu(given @ layer["up"]) @ layer["down"]
    return jnp.mean((given - wanted) ** 2)


def loaded(weights: Weights) -> tuple[Weights, int]:
    """Return the checkpoint's weights and step; without a checkpoint, ``weights`` and 0."""
    if not os.path.exists(CHECKPOINT):  # noqa: PTH110
        return weights, 0
    leaves, tree = jax.tree.flatten(weights)
    with np.load(CHECKPOINT) as file:
        return jax.tree.unflatten(tree, [jnp.asarray(file[str(each)]) for each in range(len(leaves))]), int(
            file["step"]
        )


def save(weights: Weights, step: int) -> None:
    """Replace the checkpoint."""
    with open(CHECKPOINT + ".new", "wb") as file:  # noqa: PTH123
        np.savez(file, step=step, **{str(each): leaf for each, leaf in enumerate(jax.tree.leaves(weights))})
    os.replace(CHECKPOINT + ".new", CHECKPOINT)  # noqa: PTH105


def faults() -> int:
    """Return how many faults are on record."""
    with open(RECORDS) as file:  # noqa: PTH123
        return sum(" fault " in line for line in file)


def main() -> None:
    """Train until the process is killed."""
    jax.devices()
    record("device")
    optimizer = optax.sgd(1e-3)
    weights = made()
    random = np.random.default_rng(1)
    given, wanted = (jnp.asarray(random.normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32) for _ in range(2))
    record("build")

    def update(weights: Weights, state: optax.OptState) -> tuple[Weights, optax.OptState, jax.Array]:
        value, slopes = jax.value_and_grad(loss)(weights, given, wanted)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, value

    state = optimizer.init(weights)
    compiled = jax.jit(update).lower(weights, state).compile()
    record("compile")
    weights, step = loaded(weights)
    record("load", step)
    last = int(os.environ["STEPS_FAULT_EVERY"]) + step if faults() < int(os.environ["STEPS_FAULTS"]) else -1
    while True:
        weights, state, value = compiled(weights, state)
        value.block_until_ready()
        step += 1
        record("step", step)
        if step == last:
            record("fault", step)
            os._exit(1)
        if step % CHECKPOINT_EVERY == 0:
            save(weights, step)


if __name__ == "__main__":
    main()
