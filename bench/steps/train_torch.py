"""Train a transformer with PyTorch on made-up data, and record when each stage on the way to a step is over.

It imports nothing of kubemend: it runs in a container of its own, on the first GPU, or on the CPU where there is none.
The records are those of ``train.py``, in the file ``0.records`` of the directory ``$STEPS_RECORDS``. ``about.json``
next to it describes the trainer, and the directory ``step-N`` is the checkpoint after step N.

Weights are bfloat16, the optimizer is AdamW. The model is built without initial values and filled from the checkpoint:
eight threads read a file each, through memory that the GPU can copy from. ``$STEPS_COMPILED``: the model is compiled as
a whole, with the first forward and backward pass, whose end is then the end of the stage ``compile``.

It fails as ``train.py`` does, five steps after a checkpoint. With ``$STEPS_SURVIVES`` a kernel of it writes to an
address that does not exist, which the driver reports (Xid 31); the program itself continues, and waits to be killed.
"""

import os
import time

RECORDS = f"{os.environ['STEPS_RECORDS']}/0.records"


def record(stage: str, step: int = 0) -> None:
    """Record that a stage is over."""
    with open(RECORDS, "a") as file:  # noqa: PTH123 - pathlib is an import
        file.write(f"{time.monotonic_ns()} {stage} {step}\n")


record("interpreter")

import concurrent.futures  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

record("imports")

DIRECTORY = Path(os.environ["STEPS_RECORDS"])
SIZES = ("LAYERS", "WIDTH", "BATCH", "LENGTH", "WORDS")
LAYERS, WIDTH, BATCH, LENGTH, WORDS = (int(os.environ[f"STEPS_{each}"]) for each in SIZES)
HEAD = 128
CHECKPOINT_EVERY = 20
FAILS_AFTER = 5  # steps after a checkpoint
FILES, PIECE = 8, 8 << 20
MOMENTS = ("exp_avg", "exp_avg_sq")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Layer(nn.Module):
    """One layer: attention to the words before, and two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention, self.mixed = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the same shape."""
        parts = self.attention(self.norms[0](given)).view(*given.shape[:2], 3, -1, min(HEAD, WIDTH))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        given = given + self.mixed(attended.transpose(1, 2).flatten(2))
        return given + self.down(nn.functional.gelu(self.up(self.norms[1](given))))


class Model(nn.Module):
    """A transformer that predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy."""
        given = self.words(words) + self.places.weight
        for layer in self.layers:
            given = layer(given)
        answers = self.norm(given)[:, :-1] @ self.words.weight.T
        return nn.functional.cross_entropy(answers.flatten(0, 1).float(), words[:, 1:].flatten())


class Trainer:
    """Hold the model and its optimizer."""

    def __init__(self) -> None:
        """Build both, without initial values."""
        with torch.device("meta"):
            model = Model().to(torch.bfloat16)
        self.model = model.to_empty(device=DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=DEVICE.type == "cuda")
        self.words = torch.randint(WORDS, (BATCH, LENGTH), device=DEVICE)
        self.loss: Callable[[torch.Tensor], torch.Tensor] = self.model
        if os.environ.get("STEPS_COMPILED"):
            self.loss = torch.compile(self.model)
        self.first = True

    def load(self) -> int:
        """Fill both from the checkpoint and return its step; without one begin with random weights."""
        found = [int(each.name.partition("-")[2]) for each in DIRECTORY.glob("step-*[0-9]")]
        if not found:
            for each in self.model.modules():
                if isinstance(each, (nn.Linear, nn.Embedding, nn.LayerNorm)):
                    each.reset_parameters()
            return 0
        step = max(found)
        states = {
            number: {name: torch.empty_like(each) for name in MOMENTS} | {"step": torch.tensor(float(step))}
            for number, each in enumerate(self.model.parameters())
        }
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": states})
        self._copied(DIRECTORY / f"step-{step}", read)
        return step

    def save(self, step: int) -> None:
        """Save both after a step, and then remove the checkpoint before."""
        old = list(DIRECTORY.glob("step-*[0-9]"))
        made = DIRECTORY / f"step-{step}.new"
        shutil.rmtree(made, ignore_errors=True)  # of a trainer that was killed while it wrote
        made.mkdir()
        self._copied(made, write)
        made.rename(DIRECTORY / f"step-{step}")
        for each in old:
            shutil.rmtree(each)

    def step(self) -> None:
        """Train one step, and return when it is finished."""
        self.loss(self.words).backward()
        if self.first and os.environ.get("STEPS_COMPILED"):
            wait()
            record("compile")
        self.first = False
        self.optimizer.step()
        self.optimizer.zero_grad()
        wait()

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all that a checkpoint has."""
        for each in self.model.parameters():
            yield from (each.detach(), *(self.optimizer.state[each][name] for name in MOMENTS))

    def _copied(self, directory: Path, copy: Callable[[Path, list[torch.Tensor]], None]) -> None:
        """Read or write the files of a checkpoint, each in a thread of its own."""
        wait()
        pieces = [piece for each in self.tensors() for piece in each.view(-1).view(torch.uint8).split(PIECE)]
        with concurrent.futures.ThreadPoolExecutor(FILES) as threads:
            work = [threads.submit(copy, directory / str(each), pieces[each::FILES]) for each in range(FILES)]
            for each in work:
                each.result()


def read(path: Path, pieces: list[torch.Tensor]) -> None:
    """Fill tensors of bytes from a file."""
    with path.open("rb", buffering=0) as file, transfer() as (buffer, finish):
        for piece in pieces:
            part = piece if buffer is None else buffer[: len(piece)]
            if file.readinto(part.numpy()) != len(piece):
                raise OSError(f"{path} is too short")
            if buffer is not None:
                piece.copy_(part, non_blocking=True)
                finish()


def write(path: Path, pieces: list[torch.Tensor]) -> None:
    """Write tensors of bytes into a new file."""
    with path.open("wb", buffering=0) as file, transfer() as (buffer, finish):
        for piece in pieces:
            part = piece if buffer is None else buffer[: len(piece)]
            if buffer is not None:
                part.copy_(piece, non_blocking=True)
                finish()
            if file.write(part.numpy()) != len(piece):
                raise OSError(f"{path} is not complete")


@contextlib.contextmanager
def transfer() -> Iterator[tuple[torch.Tensor | None, Callable[[], None]]]:
    """Yield memory from which the GPU copies, and what waits for the copy; on the CPU neither is needed."""
    if DEVICE.type == "cpu":
        yield None, wait
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield torch.empty(PIECE, dtype=torch.uint8, pin_memory=True), stream.synchronize


def wait() -> None:
    """Wait until the GPU has done its work."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def faults() -> int:
    """Return how many faults are on record."""
    with open(RECORDS) as file:  # noqa: PTH123
        return sum(" fault " in line for line in file)


def may_fail(count: int) -> bool:
    """Return whether the fault after ``count`` others may come: with ``$STEPS_TRIGGER`` a file must allow it."""
    return not os.environ.get("STEPS_TRIGGER") or (DIRECTORY / f"fail-{count}").exists()


def fail() -> None:
    """End as if by an exception, without any cleanup, or break the GPU's context and hang."""
    if os.environ.get("STEPS_SURVIVES"):
        if DEVICE.type == "cuda":
            nowhere = torch._C._construct_storage_from_data_pointer(0x10, DEVICE, 16)  # noqa: SLF001
            torch.empty(0, dtype=torch.uint8, device=DEVICE).set_(nowhere).fill_(1)
            with contextlib.suppress(RuntimeError):
                wait()
        while True:
            time.sleep(1.0)
    os._exit(1)


def describe(trainer: Trainer) -> None:
    """Write the model and the device."""
    parameters = sum(each.numel() for each in trainer.model.parameters())
    about = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
        "parameters": parameters,
        "checkpoint_bytes": 6 * parameters,
    }
    (DIRECTORY / "about.json").write_text(json.dumps(about))


def main() -> None:
    """Train until the process is killed."""
    torch.ones(1, device=DEVICE)
    wait()
    record("device")
    trainer = Trainer()
    record("build")
    step = trainer.load()
    wait()
    record("load", step)
    count = faults()
    began, fails = step, count < int(os.environ["STEPS_FAULTS"])
    while True:
        trainer.step()
        step += 1
        record("step", step)
        if step == began + 2:
            describe(trainer)
        due = step >= began + int(os.environ["STEPS_FAULT_EVERY"]) and step % CHECKPOINT_EVERY == FAILS_AFTER
        if fails and due and may_fail(count):
            record("fault", step)
            fail()
        if step % CHECKPOINT_EVERY == 0:
            trainer.save(step)


if __name__ == "__main__":
    main()
