"""``kubemend restart``."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agent import settings as settings_module
from agent.restart import intents, options
from common import durations

EXIT_INTERRUPTED = 130  # 128 and SIGINT, as shells have it


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", help="The pod's namespace (default: default); also POD as NAMESPACE/NAME.")
@click.option("-c", "--container", "containers", multiple=True, help="The container; may be repeated.")
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in intents.Strategy]),
    help="How; without it, as the pod is annotated.",
)
@click.option("--grace", help="Time after SIGTERM, such as 10s or 500ms; 0 is SIGKILL at once. Default: as annotated.")
@click.option("--reason", default="", help="Why, in a line, for the pod's condition and the agent's log.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow it to its verified end.")
@click.option("--json", "as_json", is_flag=True, help="Print the progress as JSON, an object a line.")
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

    Without --container it restarts those that the pod is annotated for, else its only main container. The pod need
    not have opted in, and its budget is not asked; whatever could harm it is refused all the same. Ctrl-C ends the
    watching only: the agent sees the restart through.

    Exit code 0: restarted and verified (with --no-wait: taken in); 1: refused, failed or not verified; 2: usage;
    3: no agent answers.
    """
    from agent.control import client, following, messages, rendering
    from agent.restart import asking

    where, name = _pod(pod, namespace)
    try:
        asked = asking.Asked(
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
        code = asyncio.run(following.follow(request, socket=state_dir / messages.SOCKET, wait=wait, show=show))
    except client.NotReachableError as error:
        code = _failed(error, following.EXIT_NOT_REACHABLE)
    except client.NotAcceptedError as error:
        code = _failed(error, following.EXIT_USAGE if error.usage else following.EXIT_NOT_DONE)
    except client.LostError as error:
        code = _failed(f"{error}; what was begun is seen through by it or by its successor", following.EXIT_NOT_DONE)
    except KeyboardInterrupt:
        code = _failed("no longer followed; the agent sees through what it has taken in", EXIT_INTERRUPTED)
    sys.exit(code)


def _pod(text: str, namespace: str | None) -> tuple[str, str]:
    """Return namespace and name of ``NAME``, ``pod/NAME`` or ``NAMESPACE/NAME``."""
    first, slash, last = text.rpartition("/")
    given = first if slash and first not in ("pod", "pods", "po") else None
    if not last or "/" in first or given == "" or (given and namespace and given != namespace):
        raise click.BadParameter(f"{text!r} is no pod; write NAME, NAMESPACE/NAME or pod/NAME", param_hint="POD")
    return given or namespace or "default", last


def _grace(text: str) -> float:
    """Return how many seconds a grace period has. Raises ValueError."""
    seconds = durations.seconds(text)
    if seconds > options.LONGEST_GRACE:
        raise ValueError(f"{text!r}: {options.LONGEST_GRACE:g}s is the longest")
    return seconds


def _failed(why: object, code: int) -> int:
    click.echo(f"kubemend restart: {why}", err=True)
    return code
