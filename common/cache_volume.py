"""Name the volume for compile caches that outlive restarts, where it is mounted, and what is in it.

The same is written in daemonset/components/caches and, because that is a single file, in launcher/kubemend_run.py; a
test compares them.
"""

from typing import Final

NAME: Final = "kubemend-cache"
PATH: Final = "/var/cache/kubemend"
"""Where it is mounted. Each container has a directory of its own name in it."""
DIRECTORIES: Final = {
    "CUDA_CACHE_PATH": "cuda",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "PYTHONPYCACHEPREFIX": "python",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "xdg",
}
"""The variables, and the directories below the container's that they name."""
