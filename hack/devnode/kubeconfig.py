"""Write the kubeconfig of a dev node's API server."""

from pathlib import Path

import yaml


def write(path: Path, *, server: str, token: str, certificate_authority: Path | None = None) -> Path:
    """Write a kubeconfig with one cluster and one user, readable by its owner alone, and return its path."""
    cluster = {"server": server}
    if certificate_authority is not None:
        cluster["certificate-authority"] = str(certificate_authority)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "devnode",
        "contexts": [{"name": "devnode", "context": {"cluster": "devnode", "user": "admin"}}],
        "clusters": [{"name": "devnode", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def write_for_same_cluster(path: Path, *, other: Path, token: str) -> Path:
    """Write a kubeconfig for the cluster of an ``other`` one, with another user's token, and return its path."""
    (cluster,) = yaml.safe_load(other.read_text())["clusters"]
    authority = Path(cluster["cluster"]["certificate-authority"])
    return write(path, server=cluster["cluster"]["server"], token=token, certificate_authority=authority)
