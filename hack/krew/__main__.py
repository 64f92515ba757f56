"""``python -m hack.krew``: write the archive and the manifest of the plugin ``kubectl mend`` for krew."""

import pathlib

import click
import yaml

from hack.krew import packaging


@click.command()
@click.option(
    "--releases", required=True, help="Address below which vVERSION/ARCHIVE and the wheel are published.", metavar="URL"
)
@click.argument("directory", type=click.Path(file_okay=False, path_type=pathlib.Path))
def main(releases: str, directory: pathlib.Path) -> None:
    """Write the archive and the manifest into DIRECTORY."""
    if not releases.startswith("https://"):
        raise click.BadParameter(f"{releases!r} is no https address", param_hint="--releases")
    directory.mkdir(parents=True, exist_ok=True)
    project = packaging.project()
    packed = packaging.archive(project, releases=releases)
    manifest = packaging.manifest(project, releases=releases, packed=packed)
    (directory / packaging.ARCHIVE).write_bytes(packed)
    (directory / packaging.MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    for name in (packaging.ARCHIVE, packaging.MANIFEST):
        click.echo(directory / name)
    click.echo(f"publish the archive, and the wheel as {packaging.wheel(project, releases=releases)}", err=True)


if __name__ == "__main__":
    main()
