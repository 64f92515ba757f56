"""The Kubernetes package costs what is used of it."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from common.kube import config
assert config.aio_client.ApiClient and config.loaders.load_kube_config
print(*[name for name in ("requests", "oauthlib", "websocket") if name in sys.modules])
{then}
"""


@pytest.mark.parametrize(
    ("then", "loaded"),
    [
        pytest.param("", "\n", id="what-is-not-used-is-not-loaded"),
        pytest.param(
            "import kubernetes; print(kubernetes.config.load_kube_config.__name__)",
            "\nload_kube_config\n",
            id="what-is-touched-after-all-works",
        ),
    ],
)
def test_imports(then: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(then=then)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (loaded, "")
