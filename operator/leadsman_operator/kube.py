"""The API server, as the few things that are asked of it.

Where it is and how to authenticate is the official client's part: kubeconfig with its plugins, or
the pod's own service account, whose token is renewed. What is asked for and answered is bytes:
reading only the fields that are needed takes 9 µs a pod, the client's models 240.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from leadsman.units import Seconds

MERGE: Final = "application/merge-patch+json"
_TIMEOUT: Final[Seconds] = 30.0
_WHOLE: Final = aiohttp.ClientTimeout(total=_TIMEOUT)


class ApiError(Exception):
    """The API server's own word that it will not: `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


NO_ANSWER: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""What is raised where the API server cannot be reached."""


class _Status(msgspec.Struct):
    message: str = ""


@asynccontextmanager
async def api(kubeconfig: str | None) -> AsyncIterator["Api"]:
    """Connect by a kubeconfig file; None: as the pod that this runs in, or by the user's own.

    Raises OSError where there is nothing to connect by.
    """
    settings = Configuration()
    try:
        await _configure(settings, kubeconfig)
    except config.ConfigException as error:
        raise OSError(f"no way to an API server: {error}") from error
    async with ApiClient(settings) as client:
        yield Api(client)


async def _configure(settings: Configuration, kubeconfig: str | None) -> None:
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    else:
        where = {"config_file": kubeconfig, "client_configuration": settings}
        await config.load_kube_config(**where)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    kind: str = "application/json"
    limits: aiohttp.ClientTimeout = _WHOLE


class Api:
    """One API server. Every call raises ApiError, or one of NO_ANSWER."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Fetch."""
        return await self._whole(_Ask(method="GET", path=path, query=query or {}))

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Create an object in a collection."""
        return await self._whole(_Ask(method="POST", path=path, body=body))

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Replace an object; one that has changed since it was read is an ApiError, 409."""
        return await self._whole(_Ask(method="PUT", path=path, body=body))

    async def merge(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Change the fields that are given; a field that is None is taken out."""
        return await self._whole(_Ask(method="PATCH", path=path, body=body, kind=MERGE))

    async def watch(
        self, path: str, query: Mapping[str, str], *, silence: Seconds
    ) -> AsyncIterator[bytes]:
        """Give lines as they come; TimeoutError after `silence`, an end where the server ends."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT, sock_read=silence)
        asked = _Ask(method="GET", path=path, query={**query, "watch": "true"}, limits=limits)
        response = await self._ask(asked)
        try:
            while line := await response.content.readline():
                yield line
        finally:
            response.close()

    async def _whole(self, asked: _Ask) -> bytes:
        response = await self._ask(asked)
        async with response:
            return await response.read()

    async def _ask(self, asked: _Ask) -> aiohttp.ClientResponse:
        prepared = await self._client.param_serialize(
            method=asked.method,
            resource_path=asked.path,
            query_params=list(asked.query.items()),
            header_params={"Accept": "application/json", "Content-Type": asked.kind},
            body=asked.body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*prepared, _request_timeout=asked.limits)
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 400:
            async with response:
                raise ApiError(response.status, _message(await response.read()))
        return response


def _message(said: bytes) -> str:
    try:
        return msgspec.json.decode(said, type=_Status).message
    except msgspec.DecodeError:
        return said[:200].decode(errors="replace")
