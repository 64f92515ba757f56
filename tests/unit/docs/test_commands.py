"""Commands are found in all places where a reader would find them."""

import textwrap

import pytest

from tests.unit.docs import commands

PAGE = textwrap.dedent(
    """\
    # Title

    Run `make demo`, or in a pod `kubectl exec POD --
    kubemend doctor`. The file `kubemend` is no command, nor is `make`.

    ```sh
    docker build -t X . && docker push X   # a comment
    FILE=1; kubectl create -f - <<EOF
    kind: Restart
    EOF
    kubemend explain \\
        79 > out
    ```

    ```
    $ kubectl get restarts
    NAME
    make of this no command
    ```

    ```
    kubectl mend scan
    a picture
    ```

    ```yaml
    make: up
    ```

    As code:

        make test
        saved = (a - b)

        promtool check rules | grep 'a b'

    - in a list:

      ```sh
      kubemend status
      ```
    """
)


def found(**wanted: object) -> list[str]:
    return [
        " ".join(each.words)
        for each in commands.commands(PAGE)
        if all(getattr(each, name) == value for name, value in wanted.items())
    ]


def test_all_are_found() -> None:
    assert found(mentioned=False) == [
        "docker build -t X .",
        "docker push X",
        "FILE=1",
        "kubectl create -f -",
        "kubemend explain 79",
        "kubectl get restarts",
        "kubemend scan",
        "kubemend status",
        "make test",
        "promtool check rules",
        "grep a b",
    ]
    assert found(mentioned=True) == ["make demo", "kubectl exec POD -- kubemend doctor", "kubemend doctor"]


def test_here_document_belongs_to_its_command() -> None:
    (given,) = {each.given for each in commands.commands(PAGE)} - {""}
    assert given == "kind: Restart"


def test_blocks_are_those_of_shells() -> None:
    assert [block.partition(" ")[0] for block in commands.blocks(PAGE)] == ["docker", "kubemend"]


@pytest.mark.parametrize("text", ["```sh\nkubemend 'status\n```\n", "    make 'test\n"])
def test_unsplittable_text_is_not_a_command(text: str) -> None:
    with pytest.raises(ValueError, match="quotation"):
        list(commands.commands(f"# Title\n\n{text}"))
