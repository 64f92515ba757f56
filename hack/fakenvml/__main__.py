"""``python -m hack.fakenvml build DIR`` compiles the fake; ``ctl --state F METHOD …`` breaks and fixes its GPUs."""

import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

import click
import yaml

from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml
from hack.fakenvml.layout import Driver, Fault, Group, Kind

METHODS: Final = {
    name.replace("_", "-"): method
    for name, method in vars(FakeNvml).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
_NAMED: Final[dict[str, int]] = {
    **{name: value for name, value in vars(control).items() if name.startswith("EVENT_")},
    **{
        name: each
        for kind in (Driver, Fault, Group, Kind, control.RecoveryAction)
        for name, each in kind.__members__.items()
    },
}
"""Values that may be given by name: ``lost``, ``gpu-reset``, ``event-clock``."""

_HELP: Final = "\b\n" + "\n".join(
    f"{name:<17}{(inspect.getdoc(method) or '').partition(chr(10))[0]}" for name, method in METHODS.items()
)


@click.group()
def main() -> None:
    """A fake libnvidia-ml.so.1 for demos and tests."""


@main.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def build(directory: Path) -> None:
    """Compile libnvidia-ml.so.1 into DIRECTORY."""
    click.echo(control.build(directory))


@main.command(epilog=_HELP)
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), required=True, help="the state file")
@click.option("--gpus", type=click.IntRange(0, 16), default=8, help="GPUs of a new state file")
@click.argument("method", type=click.Choice(list(METHODS)), metavar="METHOD")
@click.argument("values", nargs=-1, metavar="[VALUE|NAME=VALUE]...")
def ctl(*, state: Path, gpus: int, method: str, values: tuple[str, ...]) -> None:
    """Call a method of FakeNvml while clients run; creates the state file when there is none.

    Each VALUE is one of its parameters, as YAML or by name: `xid gpu=0 code=79`, `fault lost gpu=1`,
    `link 4 active=false gpu=1`, `processes '{4711: 1000}' gpu=1`, `mig '{gpu_instance: 1}' gpu=1`.
    """
    pairs = [(text, re.fullmatch(r"([a-z][a-z_-]*)=(.*)", text)) for text in values]
    with FakeNvml(state, state.parent, gpus=gpus) as fake:
        call, result, problem = METHODS[method].__get__(fake), None, ""
        try:
            result = call(
                *(_value(text) for text, named in pairs if not named),
                **{named[1].replace("-", "_"): _value(named[2]) for _, named in pairs if named},
            )
        except (IndexError, TypeError, ValueError, yaml.YAMLError) as error:
            problem = f"{method}{inspect.signature(call)}: {error}"  # its traceback would keep the file's map open
    if problem:
        raise click.UsageError(problem)
    if result is not None:
        click.echo(json.dumps(result, indent=2))


def _value(text: str) -> Any:
    name = text.upper().replace("-", "_")
    if name in _NAMED:
        return _NAMED[name]
    value = yaml.safe_load(text)
    return control.MigSpec(**value) if isinstance(value, dict) and "gpu_instance" in value else value


if __name__ == "__main__":
    main()
