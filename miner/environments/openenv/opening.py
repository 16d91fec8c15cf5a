"""A source of episodes from settings: servers that answer, and a codec.

Invariant: what cannot work is refused here, before anything is played; nothing that was started is
left behind by a refusal.
"""

import asyncio
import logging
from collections.abc import Sequence

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.environments.errors import InfrastructureError, ProtocolError
from miner.environments.openenv.codec import Codec, Json, codec_for, takes_tools
from miner.environments.openenv.environment import OpenEnvSource
from miner.environments.openenv.hosting import LocalApp, start
from miner.environments.openenv.server import OpenEnvServer
from miner.environments.openenv.session import RefusedAction
from miner.environments.servers import check_server_urls

logger = logging.getLogger(__name__)


async def open_openenv(
    urls: Sequence[str], settings: OpenEnvSettings, *, patience_s: float = 0.0
) -> OpenEnvSource:
    """A source on the local server that the settings name, else on all of `urls`.

    Servers that do not answer within `settings.start_seconds` are left out with a warning; where
    none does, all are waited for up to `patience_s`.

    Raises: `ConfigurationError` for settings that cannot work, `InfrastructureError` where no
        server answers, `ProtocolError` for one that is no OpenEnv server.
    """
    host = LocalApp(settings.app, settings.python) if settings.app else None
    if host is not None:
        await start(host, settings.start_seconds)
    elif not urls:
        raise ConfigurationError(
            'environment.channel="openenv" needs a server: set environment.servers=["http://...'
            ':8000"], or environment.openenv.app to a file that serves one here'
        )
    try:
        there = [host.url] if host else check_server_urls(urls)
        return await _open(there, settings, host, patience_s)
    except BaseException:
        if host is not None:
            await asyncio.to_thread(host.stop)
        raise


async def _open(
    urls: Sequence[str], settings: OpenEnvSettings, host: LocalApp | None, patience_s: float
) -> OpenEnvSource:
    servers = {url: OpenEnvServer(url, reply_seconds=settings.reply_seconds) for url in urls}
    try:
        there = await _that_answer(servers, settings.start_seconds, patience_s)
        codecs = [await _codec(server, settings) for server in there.values()]
        if len({str(codec) for codec in codecs}) > 1:
            raise ConfigurationError(
                "environment.servers play different environments: "
                + "; ".join(f"at {u} {c}" for u, c in zip(there, codecs, strict=True))
            )
    except BaseException:
        for server in servers.values():
            await server.close()
        raise
    return OpenEnvSource(there, settings, codecs[0], host)


async def _that_answer(
    servers: dict[str, OpenEnvServer], seconds: float, patience_s: float
) -> dict[str, OpenEnvServer]:
    """Those that answer in time. Raises: `InfrastructureError`."""
    waited, errors = 0.0, dict.fromkeys(servers, "not asked")
    while all(errors.values()) and waited < max(seconds, patience_s):
        waits = (server.wait_until_healthy(seconds) for server in servers.values())
        errors = dict(zip(servers, await asyncio.gather(*waits), strict=True))
        waited += seconds
    if all(errors.values()):
        reasons = ", ".join(f"{url}: {reason}" for url, reason in errors.items())
        raise InfrastructureError(
            f"no OpenEnv server answers within {waited:g} s ({reasons}): start one, correct "
            "environment.servers, or raise environment.openenv.start_seconds"
        )
    for url, reason in errors.items():
        if reason:
            logger.warning("the OpenEnv server at %s does not answer (%s): left out", url, reason)
            await servers[url].close()
    return {url: server for url, server in servers.items() if not errors[url]}


async def _codec(server: OpenEnvServer, settings: OpenEnvSettings) -> Codec:
    """Raises: `ConfigurationError`, `EnvironmentFault`."""
    schema = await server.action_schema()
    tools = None
    if takes_tools(schema) and not settings.action:
        tools = await _tools(server)
    try:
        return codec_for(schema, settings, tools)
    except ConfigurationError as error:
        raise ConfigurationError(f"{server.url}: {error}") from error


async def _tools(server: OpenEnvServer) -> list[Json] | None:
    """Tools of an environment of tools; None for any other."""
    session = await server.connect()
    try:
        listed = (await session.step({"type": "list_tools"})).observation.get("tools")
    except (RefusedAction, ProtocolError):
        return None
    finally:
        await session.close()
    if not isinstance(listed, list):
        return None
    return [tool for tool in listed if isinstance(tool, dict)]
