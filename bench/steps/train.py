"""Train a small transformer on made-up data, and record when each stage on the way to a step is over.

It imports nothing of kubemend: it runs in a container of its own. Each line of the file ``RANK.records`` in the
directory ``$STEPS_RECORDS`` is a moment (``time.monotonic_ns``), a stage and the number of the last finished step. The
checkpoint is next to that file. Every ``$STEPS_FAULT_EVERY`` steps it ends as if by an exception, without any cleanup,
``$STEPS_FAULTS`` times in all; with ``$STEPS_SURVIVES`` it only stops, and waits to be killed. With each step it writes
the file ``$STEPS_BEAT``, if that is set. With ``$STEPS_TRIGGER``
the fault with the number N, from 0, waits for the file ``fail-N``, and comes as many steps after a checkpoint as
without it. The model has ``$STEPS_LAYERS`` layers: the compiler needs longer for more.

With ``$STEPS_PREPARED`` one process alone takes the compiled step from ``prepared``, whose function kubemend's launcher
has had the spare call before the fault.

``$STEPS_WORLD`` processes train together, each on a part of the batch, and add up their gradients in each step. The
first one writes its address into a file next to the records. The last one has the faults.
"""

import contextlib
import io
import os
import socket
import time

WORLD, RANK = int(os.environ.get("STEPS_WORLD", "1")), int(os.environ.get("JOB_COMPLETION_INDEX", "0"))
RECORDS = f"{os.environ['STEPS_RECORDS']}/{RANK}.records"
CHECKPOINT = f"{os.environ['STEPS_RECORDS']}/checkpoint.npz"
COORDINATOR = f"{os.environ['STEPS_RECORDS']}/coordinator"
PORT = 12345
CHECKPOINT_EVERY = 10
MISSING_SECONDS = 10  # after which the others notice that one is missing; JAX's default is 100 s


def record(stage: str, step: int = 0) -> None:
    """Record that a stage is over."""
    with open(RECORDS, "a") as file:  # noqa: PTH123 - pathlib is an import
        file.write(f"{time.monotonic_ns()} {stage} {step}\n")


record("interpreter")

# What a trainer with JAX imports: the model's layers, the optimizer and the checkpoints.
import flax.linen  # noqa: E402, F401
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import model  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint  # noqa: E402, F401
from model import Compiled, Weights  # noqa: E402

record("imports")


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
    content = io.BytesIO()
    np.savez(content, step=step, **{str(each): leaf for each, leaf in enumerate(jax.tree.leaves(weights))})
    replace_file(CHECKPOINT, content.getvalue())


def meet() -> None:
    """Wait for the other processes."""
    if RANK == 0:
        replace_file(COORDINATOR, f"{os.environ['POD_IP']}:{PORT}".encode())
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator(), WORLD, RANK, heartbeat_timeout_seconds=MISSING_SECONDS)
    record("rendezvous")


def coordinator() -> str:
    """Return the address of the first process, once it listens there. Its pod may be another one than before."""
    while True:
        with contextlib.suppress(OSError), open(COORDINATOR) as file:  # noqa: PTH123
            host = file.read().partition(":")[0]
            if RANK:
                socket.create_connection((host, PORT), timeout=0.5).close()
            return f"{host}:{PORT}"
        time.sleep(0.05)


def replace_file(path: str, content: bytes) -> None:
    """Replace a file as a whole."""
    with open(path + ".new", "wb") as file:  # noqa: PTH123
        file.write(content)
    os.replace(path + ".new", path)  # noqa: PTH105


def faults() -> int:
    """Return how many faults are on record."""
    with open(RECORDS) as file:  # noqa: PTH123
        return sum(" fault " in line for line in file)


def may_fail(count: int) -> bool:
    """Return whether the fault after ``count`` others may come."""
    path = f"{os.environ['STEPS_RECORDS']}/fail-{count}"
    return not os.environ.get("STEPS_TRIGGER") or os.path.exists(path)  # noqa: PTH110


def built() -> Compiled:
    """Return the model with its compiled step."""
    if os.environ.get("STEPS_PREPARED"):
        import prepared

        found = prepared.prepare()
        for stage in ("device", "build", "compile"):
            record(stage)
        return found
    return model.compiled(WORLD, RANK, over=record)


def main() -> None:
    """Train until the process is killed."""
    if WORLD > 1:
        meet()
    weights, state, compiled, (given, wanted), whole = built()
    weights, step = loaded(weights)
    weights = jax.device_put(weights, whole)
    record("load", step)
    count = faults()
    fails = RANK == WORLD - 1 and count < int(os.environ["STEPS_FAULTS"])
    last = int(os.environ["STEPS_FAULT_EVERY"]) + step
    beat = os.environ.get("STEPS_BEAT")
    while True:
        weights, state, value = compiled(weights, state, given, wanted)
        value.block_until_ready()
        step += 1
        record("step", step)
        if beat:
            with open(beat, "w") as file:  # noqa: PTH123
                file.write(f"{step}\n")
        if fails and step >= last and (step - last) % CHECKPOINT_EVERY == 0 and may_fail(count):
            record("fault", step)
            while os.environ.get("STEPS_SURVIVES"):
                time.sleep(1.0)
            os._exit(1)
        if RANK == 0 and step % CHECKPOINT_EVERY == 0:
            save(weights, step)


if __name__ == "__main__":
    main()
