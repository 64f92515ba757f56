"""``python -m tests.platforms``: build the controllers of other projects, once, and print where each is."""

from kubemend.common import logs
from tests.platforms import controllers


def main() -> None:
    """Build them. Raises PackagesError."""
    logs.configure(log_format="console")
    for each in controllers.ALL:
        print(f"{each.name} {each.module.version}: {each.build()}")  # noqa: T201


if __name__ == "__main__":
    main()
