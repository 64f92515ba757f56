"""Define the settings of a process as one frozen value, from flags, environment, a file and defaults, in this order."""

import functools
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, Final

import click
import yaml

from kubemend.common import durations

ENV_PREFIX: Final = "KUBEMEND_"

_LAST_PORT: Final = (1 << 16) - 1
_NAMESPACE: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1123), as the API server requires."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def setting(help_text: str, *, default: Any, env: str | None = None) -> Any:
    """Return a field whose flag is its name, and whose variable is ``KUBEMEND_`` and its name, or ``env``."""
    return field(default=default, metadata={"help": help_text, "env": env, "duration": False})


def duration(help_text: str, *, default: float) -> Any:
    """Return a field of seconds, written as Kubernetes durations: ``30s``, ``500ms``, ``5m``."""
    return field(default=default, metadata={"help": help_text, "env": None, "duration": True})


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` or ``[HOST]:PORT``; a port is from 0 to 65535. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not 0 <= int(port) <= _LAST_PORT:
        raise ValueError(f"{address} is not HOST:PORT")
    return host.strip("[]"), int(port)


def check_logging(*, level: str, form: str) -> None:
    """Raise click.BadParameter unless these are a log level and a log format."""
    if level not in ("debug", "info", "warning", "error"):
        raise click.BadParameter(f"--log-level {level!r}; use debug, info, warning or error")
    if form not in ("json", "console"):
        raise click.BadParameter(f"--log-format {form!r}; use json or console")


def is_namespace(name: str) -> bool:
    """Return whether the API server accepts this as the name of a namespace."""
    return _NAMESPACE.fullmatch(name) is not None


def check_namespaces(names: Iterable[str]) -> None:
    """Raise click.BadParameter unless these can be namespaces: no pod is in one called "a,b"."""
    for name in names:
        if not is_namespace(name):
            hint = "repeat the flag for several; in the variable, separate them by spaces"
            raise click.BadParameter(f"--opt-in-namespace {name!r} is not the name of a namespace; {hint}")


class Options:
    """Derive the options of a click command from a settings type: a frozen dataclass of ``setting``."""

    def __init__(self, kind: type, *, owner: str, check: Callable[[Any], None]) -> None:
        """Create them; ``owner`` names the owner of the settings, such as "the agent".

        ``check`` raises click.BadParameter for values that cannot work, before anything starts.
        """
        self._kind = kind
        self._owner = owner
        self._check = check

    def all(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """Give a click command ``--config`` and one option per setting, and call it with the value as ``settings``.

        Other options of the command are passed on to it.
        """
        names = [item.name for item in fields(self._kind)]

        @functools.wraps(command)
        def with_settings(**given: Any) -> Any:
            settings = self._kind(**{name: given.pop(name) for name in names})
            self._check(settings)
            return command(settings=settings, **given)

        return self.some(*names)(with_settings)

    def some(self, *names: str) -> Decorator:
        """Give a click command ``--config`` and the options of these settings, passed on under their names."""

        def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
            decorated = command
            for item in reversed(fields(self._kind)):
                if item.name in names:
                    decorated = self._option(item)(decorated)
            return click.option(
                "--config",
                type=click.Path(path_type=Path, dir_okay=False),
                envvar=ENV_PREFIX + "CONFIG",
                is_eager=True,
                expose_value=False,
                callback=self._read_file,
                help=f"YAML file with any of {self._owner}'s settings, named like its flags.",
            )(decorated)

        return decorate

    def report_unknown_variables(self, environ: Mapping[str, str] = os.environ) -> None:
        """Log the variables that look like settings and are none: a misspelled one would have no effect, silently."""
        known = {ENV_PREFIX + name.upper() for name in ("config", *(item.name for item in fields(self._kind)))}
        if unknown := sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known):
            import structlog  # not for --help, and not before ``agent.app``, which keeps it from loading rich

            log = structlog.get_logger(__name__)
            log.warning("settings.unknown_variables", names=unknown, hint="they are ignored; see --help")

    def _option(self, item: "Field[Any]") -> Decorator:
        kind = typing.get_type_hints(self._kind)[item.name]
        flag = f"--{item.name.replace('_', '-')}"
        assert item.default is not MISSING
        common: dict[str, Any] = {
            "default": item.default,
            "help": item.metadata["help"],
            "envvar": [ENV_PREFIX + item.name.upper(), *filter(None, [item.metadata["env"]])],
            "show_envvar": True,
            "show_default": item.default not in (None, (), ""),
        }
        if item.metadata["duration"]:
            return click.option(flag, type=_Duration(), **common | {"show_default": durations.text(item.default)})
        if kind in (bool, bool | None):
            return click.option(f"{flag}/--no-{flag[2:]}", **common)
        if kind == tuple[str, ...]:
            return click.option(flag.removesuffix("s"), item.name, multiple=True, **common)
        return click.option(flag, type=_parameter(kind), cls=_Option, **common)

    def _read_file(self, context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
        if path is None:
            return None
        try:
            document = yaml.safe_load(path.read_text("utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise click.BadParameter(f"cannot read {path}: {' '.join(str(error).split())}") from error
        if not isinstance(document, Mapping):
            raise click.BadParameter(
                f"{path} is not a mapping of settings; write lines such as 'state-dir: /var/lib/x'"
            )
        known = typing.get_type_hints(self._kind)
        values = {str(key).replace("-", "_"): value for key, value in document.items()}
        if unknown := sorted(values.keys() - known.keys()):
            raise click.BadParameter(
                f"{path} has unknown settings: {', '.join(unknown)}; see --help for the existing ones"
            )
        for name, value in values.items():
            if (needed := _needed_form(known[name], value)) is not None:
                raise click.BadParameter(f"{path}: {name.replace('_', '-')} is {value!r}; write {needed}")
        context.default_map = {**(context.default_map or {}), **values}
        return path


def _needed_form(kind: Any, value: Any) -> str | None:
    """Return the form that a setting in a file must have; None if it has it. click would take any."""
    several = (list, dict, types.NoneType)
    if kind == tuple[str, ...]:
        fits = isinstance(value, list) and not any(isinstance(each, several) for each in value)
        return None if fits else "a list, such as [a, b]"
    if value is None:
        return None if types.NoneType in typing.get_args(kind) else "a value, or leave it out for the default"
    if kind is int and isinstance(value, bool | float):
        return "a whole number"
    if kind in (bool, bool | None) and not isinstance(value, (bool, str, *several)):
        return "true or false"
    return "one value" if isinstance(value, several) else None


def _parameter(kind: Any) -> Any:
    members = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if Path in members:
        return _HostPath(optional=types.NoneType in members)
    return next(member for member in members if member is not types.NoneType)


class _Option(click.Option):
    """An empty variable turns off what is on by default; click takes it for one that is not set."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        found = super().resolve_envvar_value(ctx)
        can_be_off = isinstance(self.type, _HostPath) and self.type.optional and self.default is not None
        if found is None and can_be_off and any(os.environ.get(name) == "" for name in self.envvar or ()):
            return ""
        return found


class _Duration(click.ParamType[float]):
    """Parse a number of seconds, written as a duration."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return float(value)
        try:
            return durations.seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _HostPath(click.ParamType[Path | None]):
    """Parse a path; the empty text is "none" for optional paths."""

    name = "path"

    def __init__(self, *, optional: bool) -> None:
        self.optional = optional

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | None:
        if not str(value) and not self.optional:
            self.fail("name a path", param, ctx)
        return Path(value) if str(value) else None
