"""Where a scenario plays: the objects, the controller that works with them, and the time there."""

from collections.abc import Mapping
from typing import Any, Protocol

from common.kube import client
from common.kube.transport import Body
from controller.jobset.model import Refusal

Json = dict[str, Any]


class Api(Protocol):
    """The part of ``common.kube.client.KubeClient`` that scenarios need. Raises its errors."""

    async def get(self, path: str) -> Json:
        """Return one object."""

    async def list(self, path: str, *, params: client.Params | None = None) -> client.Listing:
        """Return the objects of a collection."""

    async def create(self, path: str, body: Json) -> Json:
        """Create an object."""

    async def update(self, path: str, body: Json) -> Json:
        """Replace an object."""

    async def patch(self, path: str, body: Body, *, content_type: client.Patch = client.Patch.STRATEGIC) -> Json:
        """Patch an object, or a subresource of it."""

    async def delete(self, path: str, *, options: Json | None = None) -> Json:
        """Delete an object."""


class Stage(Protocol):
    """One for each scenario; ``api`` may be others', too."""

    @property
    def api(self) -> Api:
        """The objects."""

    @property
    def patience(self) -> float:
        """Seconds that what is expected may take; 0 where nothing happens of itself."""

    def now(self) -> float:
        """Return the time there, in Unix seconds."""

    async def settle(self, jobset: Mapping[str, Any] | None) -> None:
        """Return when the controller has looked at all that there is of a JobSet (None: gone), and does nothing."""

    async def restart_controller(self) -> None:
        """Have another controller take over."""

    async def pass_time(self, seconds: float) -> None:
        """Let time pass."""

    async def refuse(self, jobset: Mapping[str, Any], refusal: Refusal) -> None:
        """Tell the controller that a round was refused for good."""

    async def gang(self, jobset: Mapping[str, Any]) -> Json:
        """Return what a JobSet says about its gang's rounds: limit, used, closed."""
