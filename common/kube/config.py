"""Create a session from a kubeconfig or a service account.

The rules are client-go's: an explicit kubeconfig, else the service account of the pod, else ``$KUBECONFIG`` or
``~/.kube/config``. Loading may start a credential plugin (``exec``), so it has a deadline.
"""

import asyncio
import contextlib
import contextvars
import ipaddress
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import yaml

from kubemend.common import footprint
from kubemend.common.kube import errors, library
from kubemend.common.kube.library import config as loaders

LOAD_TIMEOUT = 15.0
"""Seconds that reading the configuration may take, a credential plugin included."""

_PLUGIN_ERROR: Final = contextvars.ContextVar("_PLUGIN_ERROR", default="")
"""The loader only logs that a credential plugin failed, and continues without credentials."""


def _keep_plugin_error(record: logging.LogRecord) -> bool:
    if record.levelno < logging.ERROR:
        return True
    _PLUGIN_ERROR.set(" ".join(record.getMessage().split()))
    return False


logging.getLogger(loaders.kube_config.__name__).addFilter(_keep_plugin_error)


async def load(*, kubeconfig: Path | None, environ: Mapping[str, str] = os.environ) -> library.RESTClientObject:
    """Return a session with the API server. Raises NotConfiguredError with the hint."""
    configuration = library.Configuration()
    configuration.retries = None  # retries happen in one place, common.kube.client
    source = f"kubeconfig {kubeconfig}" if kubeconfig is not None else "the service account"
    try:
        async with asyncio.timeout(LOAD_TIMEOUT):
            if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in environ:
                loaders.load_incluster_config(client_configuration=configuration)
            else:
                files = [kubeconfig] if kubeconfig is not None else default_kubeconfigs(environ)
                source = f"kubeconfig {_joined(files)}"
                await _load_files(files, configuration)
        if urlsplit(configuration.host).scheme not in ("http", "https"):
            raise _refused(source, f"server {configuration.host!r} is not a URL")
        return _session(configuration)
    except TimeoutError as error:
        raise _refused(source, f"its credential plugin did not answer within {LOAD_TIMEOUT:.0f} s") from error
    except (
        *(loaders.ConfigException, OSError, yaml.YAMLError),
        *(ValueError, KeyError, TypeError, AttributeError),  # of a file in another form
    ) as error:
        raise _refused(source, " ".join(str(error).split())) from error


async def credentials(configuration: library.Configuration) -> dict[str, str]:
    """Return the authentication headers, read again where they rotate. Raises NotConfiguredError with the hint."""
    try:
        settings = await configuration.auth_settings()
    except (loaders.ConfigException, OSError) as error:
        raise _refused("the credentials", " ".join(str(error).split())) from error
    return {each["key"]: each["value"] for each in settings.values() if each["value"]}


def default_kubeconfigs(environ: Mapping[str, str]) -> Sequence[Path]:
    """Return the kubeconfigs that ``kubectl`` would read, in order. Raises NotConfiguredError if there is none."""
    candidates = [Path(item) for item in environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    if not candidates and "HOME" in environ:
        candidates.append(Path(environ["HOME"]) / ".kube" / "config")
    if found := [path for path in candidates if path.is_file()]:
        return found
    raise errors.NotConfiguredError(
        "cannot find the API server: not in a pod, and no kubeconfig",
        hint="run in a pod with a service account, or name a kubeconfig",
    )


def current_context(files: Sequence[Path]) -> tuple[str, Mapping[str, Any]]:
    """Return name and content of the context that ``kubectl`` would use: of all files the first that has each.

    Raises OSError, yaml.YAMLError or UnicodeDecodeError. A context that is not found is empty.
    """
    documents = [yaml.safe_load(path.read_text("utf-8")) for path in files]
    mappings = [each for each in documents if isinstance(each, dict)]
    current = next((str(each["current-context"]) for each in mappings if each.get("current-context")), "")
    lists = [each["contexts"] for each in mappings if isinstance(each.get("contexts"), list)]
    for entry in itertools.chain.from_iterable(lists):
        match entry:
            case {"name": name, "context": dict(context)} if name == current:
                return current, context
    return current, {}


def is_loopback(host: str) -> bool:
    """Return whether a server URL points at this machine: such requests never use a proxy, as in Go's client."""
    name = urlsplit(host).hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _load_files(files: Sequence[Path], configuration: library.Configuration) -> None:
    """Load all files as one. The loader merges them, but would take the current context of the last one."""
    context, _ = current_context(files)  # the loader treats a missing file as an empty one
    _PLUGIN_ERROR.set("")
    merger = loaders.kube_config.KubeConfigMerger(_joined(files))
    _resolve_plugins(merger.config_files)
    loader = loaders.kube_config.KubeConfigLoader(config_dict=merger.config, active_context=context or None)
    await loader.load_and_set(configuration)
    if reason := _PLUGIN_ERROR.get():
        raise loaders.ConfigException(f"its credential plugin failed: {reason}")


def _resolve_plugins(documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Make commands with a relative path absolute, as client-go does (GetAuthInfoFileReferences)."""
    for path, document in documents.items():
        for user in document.get("users") or ():
            match user:
                case {"user": {"exec": {"command": str(command)} as plugin}} if os.sep in command:
                    plugin["command"] = str(Path(path).absolute().parent / command)


def _joined(files: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, files))


def _session(configuration: library.Configuration) -> library.RESTClientObject:
    configuration.client_session_kwargs = {
        "trust_env": not is_loopback(configuration.host),
        "read_bufsize": 2**16,  # watches are read in chunks, so no line has to fit
        "timeout": aiohttp.ClientTimeout(total=60),
    }
    footprint.use_small_tls_buffers()
    is_plain = is_loopback(configuration.host) and urlsplit(configuration.host).scheme == "http"
    # The session's TLS context, which is then not used, loads the system's authorities: 40 ms.
    with footprint.without_system_authorities() if is_plain else contextlib.nullcontext():
        return library.RESTClientObject(configuration)


def _refused(source: str, reason: str) -> errors.NotConfiguredError:
    return errors.NotConfiguredError(
        f"{source} cannot be used: {reason}", hint="fix it; it is read again at each attempt"
    )
