"""One WebSocket of an OpenEnv server, which is one episode.

Invariants:
* a session is never connected again: what a server has behind a new socket is another environment,
  which was never reset;
* the socket is read all the time, since a server that gets no answer to its pings closes it: a
  policy may think for longer than that;
* a message is bounded before it is parsed, and one that was not requested ends the session;
* the server's word for an invalid action, which it has for errors within the environment too, is
  taken as one only if it is about fields of the action.
"""

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from miner.environments.errors import EnvironmentFault, InfrastructureError, ProtocolError
from miner.environments.openenv.wire import (
    CAPACITY_REACHED,
    NO_SESSION,
    REPLY_LIMIT,
    VALIDATION_ERROR,
    ErrorData,
    ObservationData,
    Reply,
)
from miner.http_replies import describe, excerpt

_CLOSE_S: Final = 5.0
_TOO_BIG: Final = 1009  # WebSocket's close code

_T = TypeVar("_T")


class ServerFull(InfrastructureError):
    """The server holds as many sessions as it takes.

    Args:
        most: their largest number, as the server reports it.
    """

    def __init__(self, message: str, *, server: str, most: int | None) -> None:
        super().__init__(message, server=server)
        self.most = most


class RefusedAction(Exception):
    """The server will not take an action of this form; the episode is unchanged by it."""


class Session:
    """Asks one thing at a time. Made by `OpenEnvServer.connect`.

    Args:
        socket: just connected; it belongs to the session.
        url: the server's base URL, for messages.
        reply_seconds: longest wait for one reply.
        fields: of actions, beside those that an action has; None if they are not known.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        url: str,
        reply_seconds: float,
        fields: Collection[str] | None = None,
    ) -> None:
        self._socket = socket
        self._url = url
        self._reply_seconds = reply_seconds
        self._fields = fields
        self._inbox: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue(maxsize=1)
        self._reading = asyncio.create_task(self._read())

    async def reset(self, arguments: dict[str, Any]) -> ObservationData:
        """Start the episode. Raises: `ServerFull`, `EnvironmentFault`."""
        return self._observation(await self._ask("reset", arguments), "reset")

    async def step(self, action: dict[str, Any]) -> ObservationData:
        """Take an action. Raises: `RefusedAction`, `EnvironmentFault`."""
        return self._observation(await self._ask("step", action), "step")

    async def close(self) -> None:
        """End the session and wait until the server has given its place back (never raises)."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if not self._reading.done() and not self._socket.closed:
                    await self._socket.send_str('{"type":"close"}')
                    while (await self._inbox.get()).type is aiohttp.WSMsgType.TEXT:
                        pass
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()

    async def _read(self) -> None:
        """Put what comes into the inbox, the socket's end as the last thing."""
        while True:
            message = await self._socket.receive()
            await self._inbox.put(message)
            if message.type is not aiohttp.WSMsgType.TEXT:
                return

    async def _ask(self, kind: str, data: dict[str, Any]) -> Reply:
        """Raises: `ServerFull`, `RefusedAction`, `EnvironmentFault`."""
        early = not self._inbox.empty()
        try:
            words = msgspec.json.encode({"type": kind, "data": data}).decode()
        except RecursionError as error:
            raise RefusedAction("The action is nested too deeply.") from error
        with contextlib.suppress(aiohttp.ClientError, OSError):  # why it closed is in the inbox
            await self._socket.send_str(words)
        try:
            async with asyncio.timeout(self._reply_seconds):
                message = await self._inbox.get()
        except TimeoutError as error:
            raise self._lost(f"did not answer a {kind} within {self._reply_seconds:g} s") from error
        reply = self._decode(Reply, self._text(message, kind), kind)
        if reply.type == "error":
            raise self._error(self._decode(ErrorData, reply.data, kind), kind, data)
        if early:
            raise self._broken(f"sent {excerpt(reply.type)} without having been asked")
        return reply

    def _text(self, message: aiohttp.WSMessage, kind: str) -> bytes:
        if message.type is aiohttp.WSMsgType.TEXT:
            return bytes(message.data, "utf-8", "surrogatepass")
        self._inbox.put_nowait(message)  # it stays closed
        if message.type is aiohttp.WSMsgType.BINARY:
            raise self._broken(f"answered a {kind} in bytes where text is expected")
        if self._socket.close_code == _TOO_BIG:
            raise self._broken(f"answered a {kind} with more than {REPLY_LIMIT:,} bytes")
        cause = message.data if isinstance(message.data, Exception) else None
        why = describe(cause) if cause else f"WebSocket close code {self._socket.close_code}"
        raise self._lost(f"closed the session in mid-episode, at a {kind} ({why})")

    def _observation(self, reply: Reply, kind: str) -> ObservationData:
        if reply.type != "observation":
            raise self._broken(f"answered a {kind} with {excerpt(reply.type)}")
        return self._decode(ObservationData, reply.data, kind)

    def _error(self, error: ErrorData, kind: str, data: dict[str, Any]) -> Exception:
        reason = f"{error.code}: {excerpt(error.message)}"
        if error.code == CAPACITY_REACHED:
            return ServerFull(
                f"{self._url} takes no further session ({reason}): lower "
                "environment.openenv.sessions, or give the server more",
                server=self._url,
                most=error.max_sessions,
            )
        if error.code in NO_SESSION:
            return self._lost(f"has no session for a {kind} ({reason})")
        if error.code == VALIDATION_ERROR and kind == "step":
            details = [f"{'.'.join(map(str, each.loc))}: {each.msg}" for each in error.errors]
            named = {str(each.loc[0]) for each in error.errors if each.loc}
            if self._fields is None or named <= {*self._fields, *data}:
                return RefusedAction(excerpt("; ".join(details) or error.message))
            reason = f"{error.code}, not of the action: {excerpt('; '.join(details))}"
        return self._broken(f"failed at a {kind} ({reason})")

    def _decode(self, kind: type[_T], text: bytes | msgspec.Raw, at: str) -> _T:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._broken(f"answered a {at} with none of OpenEnv's JSON: {error}") from error

    def _lost(self, what: str) -> EnvironmentFault:
        return InfrastructureError(f"{self._url} {what}: play the episode again", server=self._url)

    def _broken(self, what: str) -> EnvironmentFault:
        return ProtocolError(
            f"{self._url} {what}: see the server's own log, and whether it speaks OpenEnv's /ws",
            server=self._url,
        )
