"""Generate docs/api.md from its text in api_doc.md, the definition of Restart, and values in the code.

``--check`` fails when it is stale. A test compares the names in the text with those in the sources.
"""

import enum
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hack import api_schema, generated
from kubemend.agent.restart import budget, cache, clone, intents, keep, options
from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.placement import device_taints, exclusive
from kubemend.controller.jobset.spec import model
from kubemend.controller.restarts import objects
from kubemend.controller.rounds import states, status

PAGE: Final = generated.ROOT / "docs" / "api.md"
RESTARTS: Final = generated.ROOT / "daemonset" / "crds" / "restarts.yaml"

_TEXT: Final = Path(__file__).with_suffix(".md")
"""The page, in which ``{options.IN_PLACE}`` is the value of that name, and ``{restart}`` the fields of Restart."""

_RESOURCE: Final = """\
## {kind}: `{group}/{version}`

{description}
`kubectl get {plural}` (short: `{short}`) lists them; `kubectl explain {singular}.spec` shows the same as this
page. A field that is not *required* may be left out: its *default* applies, or the rule in its description.
"""


def render(definition: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    return _TEXT.read_text("utf-8").format(
        restart="\n".join(_resource(definition)),
        strategies=_values(intents.Strategy),
        cleanable=_values(options.Clean),
        budget=budget.Budget(),
        limits=states.Limits(),
        cache=cache,
        clone=clone,
        conditions=conditions,
        device_taints=device_taints,
        exclusive=exclusive,
        keep=keep,
        model=model,
        objects=objects,
        options=options,
        status=status,
    )


def _values(kind: type[enum.Enum]) -> str:
    return ", ".join(f"`{each.value}`" for each in kind)


def _resource(definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the served versions of a resource."""
    spec = definition["spec"]
    named = spec["names"]
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        yield _RESOURCE.format(
            kind=named["kind"],
            singular=named["singular"],
            group=spec["group"],
            version=version["name"],
            description=schema["description"],
            plural=named["plural"],
            short=", ".join(named["shortNames"]),
        )
        for part in ("spec", "status"):
            yield f"### {named['kind']} {part}\n"
            yield "| field | type | default and rules | meaning |\n|---|---|---|---|"
            for each in api_schema.fields(schema["properties"][part], path=part):
                yield _row((f"`{each.path}`", each.type, " · ".join(each.rules), each.description))
            yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """Return the current content of docs/api.md."""
    return render(yaml.safe_load(RESTARTS.read_text("utf-8")))


if __name__ == "__main__":
    sys.exit(generated.main("api_doc", lambda: {PAGE: page()}))
