"""``python -m hack.image``: build the image, and print the path of its archive."""

import click

from hack.devnode import packages
from hack.image import build
from kubemend.common import logs


@click.command()
def main() -> None:
    """Build kubemend's image from the Dockerfile, on a base made of Debian's packages (Debian, root)."""
    logs.configure(log_format="console")
    try:
        click.echo(build.ensure())
    except (build.ImageError, packages.PackagesError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
