"""The import of the Kubernetes package costs only its used parts."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from kubemend.common.kube import library
assert library.Configuration and library.RESTClientObject and library.config.load_kube_config
heavy = ("requests", "oauthlib", "websocket", "pydantic", "kubernetes", "kubernetes.aio.client")
print(*[name for name in heavy if name in sys.modules])
{then}
"""


@pytest.mark.parametrize(
    ("then", "loaded"),
    [
        pytest.param("", "\n", id="what-is-not-used-is-not-loaded"),
        pytest.param(
            "import kubernetes; print(kubernetes.config.load_kube_config.__name__)",
            "\nload_kube_config\n",
            id="who-imports-it-all-the-same-has-its-synchronous-half",
        ),
        pytest.param(
            "from kubernetes.aio import client; print(client.Configuration is library.Configuration, client.ApiClient)",
            "\nTrue <class 'kubernetes.aio.client.api_client.ApiClient'>\n",
            id="who-imports-it-all-the-same-has-the-same-classes",
        ),
        pytest.param(
            "from kubernetes.aio import client; import importlib; importlib.reload(library); print(client.ApiClient)",
            "\n<class 'kubernetes.aio.client.api_client.ApiClient'>\n",
            id="what-was-imported-whole-stays-whole",
        ),
    ],
)
def test_imports(then: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(then=then)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (loaded, "")


def test_our_client_does_without_the_generated_models() -> None:
    """They would cost the agent some 25 MB."""
    script = "import sys, common.kube.client; print(*[name for name in sys.modules if '.models.' in name])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("\n", "")
