"""The server: an address, a start, and an end by Ctrl-C that is no error."""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from regard.errors import ConfigError, DeviceError
from regard.logging import log_info, log_warning
from regard.runs.run import Run, load

_FIRST_PORT, _PORTS_TRIED = 8000, 100
_SECONDS_TO_END = 2
"""How long answers that are being written may still take once the server is to end."""

AnyRun = Run | str | os.PathLike[str]


def serve(
    runs: AnyRun | Sequence[AnyRun],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = log_info,
) -> None:
    """Answer requests by these runs until Ctrl-C.

    Args:
        runs: A run, a folder, or several; a request that names none is for the first.
        host: The address to listen at; unless it is this machine's own, everyone who can reach it can ask.
        port: Unset, 8000 or the next that is free; 0 is any.
        device: For folders, where their models are to be.
        tell: Handed the URL as soon as requests will be answered.
    """
    try:
        import uvicorn

        from regard.serving.app import make_app
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise ConfigError(f"serving needs the package {error.name}: pip install 'regard[serve]'") from None
    several = [runs] if isinstance(runs, Run | str | os.PathLike) else runs
    loaded = [run if isinstance(run, Run) else load(run, device=device) for run in several]
    with closing(listen(host, port)) as place:
        app = make_app(loaded)
        if not _is_own(host):
            log_warning(f"everyone who can reach {host} can ask: there is no password")
        tell(url_of(place))
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=_SECONDS_TO_END, lifespan="on"
        )
        with suppress(KeyboardInterrupt):  # which uvicorn hands on when all is done
            uvicorn.Server(config).run(sockets=[place])


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens at an address; without a port, at the first from 8000 on that is free."""
    if port is not None:
        return _listen_at(host, port)
    for candidate in range(_FIRST_PORT, _FIRST_PORT + _PORTS_TRIED):
        with suppress(_PortInUseError):
            place = _listen_at(host, candidate)
            if candidate != _FIRST_PORT:
                log_info(f"port {_FIRST_PORT} is in use: taking {candidate}")
            return place
    raise DeviceError(f"ports {_FIRST_PORT} to {_FIRST_PORT + _PORTS_TRIED - 1} of {host} are all in use")


def url_of(place: socket.socket) -> str:
    """Where a browser finds what listens there."""
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _PortInUseError(DeviceError):
    """Another program listens there."""


def _listen_at(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise ConfigError(f"a port lies in 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family)
    except socket.gaierror:
        raise ConfigError(f"no host is called {host!r}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _PortInUseError(f"port {port} of {host} is in use: name another") from None
        raise DeviceError(f"cannot listen at port {port} of {host}: {os.strerror(error.errno or 0)}") from None


def _is_own(host: str) -> bool:
    """Whether only programs of this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
