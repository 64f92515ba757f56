"""``kubemend restart``."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kubemend.agent import settings as settings_module
from kubemend.agent.restart import intents, options
from kubemend.common import durations

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", help="The pod's namespace (default: default); also POD as NAMESPACE/NAME.")
@click.option("-c", "--container", "containers", multiple=True, help="The container; may be repeated.")
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in intents.Strategy]),
    help="Restart strategy. Default: as annotated on the pod.",
)
@click.option("--grace", help="Time after SIGTERM, such as 10s or 500ms; 0 is SIGKILL at once. Default: as annotated.")
@click.option("--reason", default="", help="Reason in one line, for the pod's condition and the agent's log.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow the restart until it is verified.")
@click.option("--json", "as_json", is_flag=True, help="Print the progress as JSON, one object per line.")
@settings_module.some_options("state_dir")
def restart(
    *,
    pod: str,
    namespace: str | None,
    containers: tuple[str, ...],
    strategy: str | None,
    grace: str | None,
    reason: str,
    wait: bool,
    as_json: bool,
    state_dir: Path,
) -> None:
    """Restart containers of a pod in place, through the agent of this node; run it there, as root.

    Without --container it restarts the annotated containers of the pod, else its only main container. The pod need not
    have opted in, and its budget does not apply. A restart that could harm the pod is still refused. Ctrl-C only
    stops following: the agent completes the restart.

    Exit code 0: restarted and verified (with --no-wait: accepted); 1: refused, failed or not verified; 2: usage;
    3: no agent answers; 130: Ctrl-C.
    """
    from kubemend.agent.control import client, messages, rendering
    from kubemend.agent.restart import overrides

    where, name = _pod(pod, namespace)
    try:
        asked = overrides.RestartOverrides(
            strategy=intents.Strategy(strategy) if strategy is not None else None,
            containers=frozenset(containers),
            grace_seconds=_grace(grace) if grace is not None else None,
        )
    except ValueError as error:
        raise click.BadParameter(f"--grace {error}") from error
    lines = rendering.Lines()

    def show(event: Mapping[str, Any]) -> None:
        line = json.dumps(event) if as_json else lines.line(event)
        if line is not None:
            click.echo(line)

    request = messages.RestartRequest(namespace=where, pod=name, asked=asked, reason=reason)
    try:
        code = asyncio.run(client.follow(request, socket=state_dir / messages.SOCKET, wait=wait, show=show))
    except client.NotReachableError as error:
        code = _failed(error, client.EXIT_NOT_REACHABLE)
    except client.NotAcceptedError as error:
        code = _failed(error, client.EXIT_USAGE if error.usage else client.EXIT_NOT_DONE)
    except client.LostError as error:
        code = _failed(
            f"{error}; a restart that has begun is completed by this agent or the next one", client.EXIT_NOT_DONE
        )
    except KeyboardInterrupt:
        code = _failed("no longer following; the agent completes the restarts that it has accepted", EXIT_INTERRUPTED)
    sys.exit(code)


def _pod(text: str, namespace: str | None) -> tuple[str, str]:
    """Return namespace and name of ``NAME``, ``pod/NAME`` or ``NAMESPACE/NAME``."""
    first, slash, last = text.rpartition("/")
    given = first if slash and first not in ("pod", "pods", "po") else None
    if not last or "/" in first or given == "" or (given and namespace and given != namespace):
        raise click.BadParameter(f"{text!r} is not a pod; write NAME, NAMESPACE/NAME or pod/NAME", param_hint="POD")
    return given or namespace or "default", last


def _grace(text: str) -> float:
    """Return a grace period in seconds. Raises ValueError."""
    seconds = durations.seconds(text)
    if seconds > options.LONGEST_GRACE:
        raise ValueError(f"{text!r}: must be at most {options.LONGEST_GRACE:g}s")
    return seconds


def _failed(reason: object, code: int) -> int:
    click.echo(f"kubemend restart: {reason}", err=True)
    return code
