"""Replace generated parts of README.md, each between two marks of its own."""


def with_block(readme: str, block: str) -> str:
    """Return a README with ``block``, whose first and last line are the marks.

    Raises ValueError when the README lacks them.
    """
    begin, *_, end = block.splitlines()
    before, found, rest = readme.partition(begin)
    _, also_found, after = rest.partition(end)
    if not found or not also_found:
        raise ValueError(f"README.md has no place for figures: {begin} and {end}")
    return before + block + after
