"""``python -m hack.image``: build the image, and print the paths of its archive and of the list of its content."""

import click

from hack.devnode import packages
from hack.image import build
from kubemend.common import logs


@click.command()
def main() -> None:
    """Build kubemend's image from the Dockerfile, on a base made of Debian's packages (Debian, root)."""
    logs.configure(log_format="console")
    try:
        archive = build.ensure()
        click.echo(f"{archive}\n{build.sbom_of(archive)}")
    except (build.ImageError, packages.PackagesError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
