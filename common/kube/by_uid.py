"""One object, and no other that has come to have its name."""

from common.kube import client, errors
from common.kube.transport import Json


async def get(api: client.KubeClient, path: str, *, uid: str) -> Json | None:
    """Return the object at a path; None where there is none any more, or another one. Raises KubeError.

    For who was refused a write that has the UID as its precondition: a wrong one answers 409 or 422, as much else does.
    """
    try:
        found = await api.get(path)
    except errors.NotFoundError:
        return None
    return found if found["metadata"]["uid"] == uid else None
