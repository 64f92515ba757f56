"""Get an object by UID: never another object that has taken its name."""

from kubemend.common.kube import client, errors
from kubemend.common.kube.transport import Json


async def get(api: client.KubeClient, path: str, *, uid: str) -> Json | None:
    """Return the object at a path; None if it no longer exists or has another UID. Raises KubeError.

    Use it after a write with the UID as its precondition was refused: a wrong UID answers 409 or 422, as other errors
    do.
    """
    try:
        found = await api.get(path)
    except errors.NotFoundError:
        return None
    return found if found["metadata"]["uid"] == uid else None
