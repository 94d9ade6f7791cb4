"""The server process: its address, its start, and its end by Ctrl-C."""

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
"""How long responses in progress may take once the server is shutting down."""

AnyRun = Run | str | os.PathLike[str]


def serve(
    runs: AnyRun | Sequence[AnyRun],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str = "auto",
    on_ready: Callable[[str], None] = log_info,
) -> None:
    """Serves runs over HTTP until Ctrl-C.

    Args:
        runs: A run, a folder, or several; a request without a model is for the first one.
        host: The address to listen on; unless it is a loopback address, everyone who can reach it can send requests.
        port: By default 8000, or the next one that is free; 0 is any free port.
        device: For folders, the device of their models.
        on_ready: Called with the URL when requests are accepted.
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
    with closing(open_socket(host, port)) as place:
        app = make_app(loaded)
        if not _is_loopback(host):
            log_warning(f"everyone who can reach {host} can send requests: there is no authentication")
        on_ready(url_of(place))
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=_SECONDS_TO_END, lifespan="on"
        )
        with suppress(KeyboardInterrupt):  # which uvicorn raises again after its shutdown
            uvicorn.Server(config).run(sockets=[place])


def open_socket(host: str, port: int | None) -> socket.socket:
    """Returns a socket that listens on an address; without a port, on the first free one from 8000 on."""
    if port is not None:
        return _listen_at(host, port)
    for candidate in range(_FIRST_PORT, _FIRST_PORT + _PORTS_TRIED):
        with suppress(_PortInUseError):
            place = _listen_at(host, candidate)
            if candidate != _FIRST_PORT:
                log_info(f"port {_FIRST_PORT} is in use, using port {candidate}")
            return place
    raise DeviceError(f"ports {_FIRST_PORT} to {_FIRST_PORT + _PORTS_TRIED - 1} of {host} are all in use")


def url_of(place: socket.socket) -> str:
    """Returns the URL of a listening socket."""
    host, port = place.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _PortInUseError(DeviceError):
    """Another program listens on the port."""


def _listen_at(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise ConfigError(f"a port must be in 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family)
    except socket.gaierror:
        raise ConfigError(f"unknown host {host!r}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _PortInUseError(f"port {port} of {host} is in use: choose another one") from None
        raise DeviceError(f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}") from None


def _is_loopback(host: str) -> bool:
    """Returns whether only programs on this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
