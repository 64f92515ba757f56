"""Names of the Restart resource (daemonset/crds/restarts.yaml)."""

from typing import Final

GROUP: Final = "restarts.kubemend.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "Restart"
PLURAL: Final = "restarts"
