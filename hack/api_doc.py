"""Generate docs/api.md from its text in pages/api.md, the definition of Restart, and values in the code.

``--check`` fails when it is stale. A test compares the names in the text with those in the sources.
"""

import enum
import sys
from collections.abc import Mapping
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


def render(definition: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    return generated.text(
        "api.md",
        spec=definition["spec"],
        fields=api_schema.fields,
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


def page() -> str:
    """Return the current content of docs/api.md."""
    return render(yaml.safe_load(RESTARTS.read_text("utf-8")))


if __name__ == "__main__":
    sys.exit(generated.main("api_doc", lambda: {PAGE: page()}))
