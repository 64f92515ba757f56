"""Print the demo's observations."""

from dataclasses import dataclass, field

import click


@dataclass
class Report:
    """Print each observation as it is made, and record whether all were as expected."""

    failures: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a section."""
        click.secho(f"\n{title}", bold=True)

    def say(self, what: str) -> None:
        """Print a line that is not a check."""
        click.echo(f"    {what}")

    def check(self, what: str, holds: bool, found: object) -> None:  # noqa: FBT001 - the verdict is the point
        """Record one observation."""
        mark = click.style("ok", fg="green") if holds else click.style("NO", fg="red", bold=True)
        click.echo(f"  {mark} {what}: {found}")
        if not holds:
            self.failures.append(what)
