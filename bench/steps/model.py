"""Build the model of ``bench.steps.train``, a small transformer, and compile its training step.

It imports nothing of kubemend, and runs in the trainer's container.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, BATCH, LENGTH = int(os.environ["STEPS_LAYERS"]), 128, 4, 32
Weights = list[dict[str, jax.Array]]


class Compiled(NamedTuple):
    """The new weights, the optimizer's state, the compiled step, the data, and where all processes have the weights."""

    weights: Weights
    state: optax.OptState
    step: jax.stages.Compiled
    data: tuple[jax.Array, jax.Array]
    whole: NamedSharding


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


def compiled(world: int, rank: int, *, over: Callable[[str], None]) -> Compiled:
    """Build the model for one of ``world`` processes, compile its step, and report the end of each stage."""
    mesh = Mesh(jax.devices(), ("batch",))
    whole, parts = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    over("device")
    optimizer = optax.sgd(1e-3)
    weights = jax.device_put(made(), whole)
    random = np.random.default_rng(1 + rank)
    given, wanted = (
        jax.make_array_from_process_local_data(
            parts, random.normal(size=(BATCH // world, LENGTH, WIDTH)).astype(np.float32)
        )
        for _ in range(2)
    )
    over("build")

    def update(
        weights: Weights, state: optax.OptState, given: jax.Array, wanted: jax.Array
    ) -> tuple[Weights, optax.OptState, jax.Array]:
        value, slopes = jax.value_and_grad(loss)(weights, given, wanted)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, value

    state = optimizer.init(weights)
    step = jax.jit(update, out_shardings=whole).lower(weights, state, given, wanted).compile()
    over("compile")
    return Compiled(weights, state, step, (given, wanted), whole)
