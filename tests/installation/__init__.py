"""kubemend from its own image, installed by its own manifests, on a dev cluster."""
