"""A real PostgreSQL server for tests, and two machines that reach it: network namespaces, each with a link of its own.

The server runs as an unprivileged user, in a folder of its own, and only as long as the block. Waits are for
conditions, with generous limits.
"""

import glob
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

TIMEOUT_SECONDS = 120
USER, DATABASE = "regard", "postgres"


@dataclass(frozen=True)
class Machine:
    """Where a command runs: its words go after `prefix`."""

    prefix: tuple[str, ...]
    host: str
    """The address of the server, as seen from here."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    password: str

    def url(self, host: str = "127.0.0.1", *, password: str | None = None, database: str = DATABASE) -> str:
        return f"postgresql://{USER}:{password or self.password}@{host}:{self.port}/{database}"


def why_not() -> str | None:
    """Why no server can be started here; None where one can."""
    if _find("initdb") is None or _find("pg_ctl") is None:
        return "PostgreSQL is not installed"
    if find_spec("psycopg") is None:
        return "psycopg is not installed: install regard[postgresql]"
    if os.geteuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no user nobody"
    return None


def _find(name: str) -> str | None:
    """The path of a program; Debian keeps those of a server outside of the PATH."""
    return shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)


def _unprivileged() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        return None


@contextmanager
def running_server(hosts: list[str]) -> Iterator[Server]:
    """A server that listens on these addresses of this machine."""
    folder = Path(tempfile.mkdtemp(prefix="regard-postgresql-", dir="/tmp"))  # the path of a socket is short
    own = {}
    try:
        if os.geteuid() == 0:
            user = _unprivileged()
            assert user is not None, "why_not returns None"
            os.chown(folder, user.pw_uid, user.pw_gid)
            own = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        password, port, data = secrets.token_hex(16), _free_port(), folder / "data"
        (folder / "password").write_text(password)
        os.chmod(folder / "password", 0o644)

        def run(name: str, *options: str) -> None:
            program = _find(name)
            assert program is not None, "why_not returns None"
            with open(folder.with_suffix(".log"), "ab") as log:
                subprocess.run([program, "-D", str(data), *options], check=True, stdout=log, stderr=log, cwd=folder,
                               timeout=TIMEOUT_SECONDS, **own)  # fmt: skip

        run("initdb", "-U", USER, "--auth=scram-sha-256", f"--pwfile={folder / 'password'}", "-E", "UTF8", "--no-sync")
        with open(data / "pg_hba.conf", "a") as file:
            file.write("host all all samenet scram-sha-256\n")
        options = f"-p {port} -k {folder} -c listen_addresses={','.join(hosts)} -c fsync=off"
        run("pg_ctl", "-o", options, "-l", str(folder / "server.log"), "-w", "-t", str(TIMEOUT_SECONDS), "start")
        try:
            yield Server(port, password)
        finally:
            run("pg_ctl", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".log").unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two network namespaces with a link to this one; two plain processes where namespaces cannot be made."""
    number = os.getpid() % 250
    names = [f"regard-{os.getpid()}-{letter}" for letter in "ab"]
    hosts = [f"198.18.{number}.{1 + 4 * index}" for index in range(2)]  # a range for tests of networks, RFC 2544
    made: list[str] = []
    try:
        for index, (name, host) in enumerate(zip(names, hosts, strict=True)):
            if not _ip("netns", "add", name):
                break
            made.append(name)
            link, other = f"rg{number}{'ab'[index]}0", f"rg{number}{'ab'[index]}1"
            inside = host.rpartition(".")[0] + f".{2 + 4 * index}"
            if not (
                _ip("link", "add", link, "type", "veth", "peer", "name", other, "netns", name)
                and _ip("addr", "add", f"{host}/30", "dev", link)
                and _ip("link", "set", link, "up")
                and _ip("-n", name, "addr", "add", f"{inside}/30", "dev", other)
                and _ip("-n", name, "link", "set", other, "up")
                and _ip("-n", name, "link", "set", "lo", "up")
            ):
                break
        else:
            machines = [Machine(("ip", "netns", "exec", name), host) for name, host in zip(names, hosts, strict=True)]
            yield machines[0], machines[1]
            return
        yield Machine((), "127.0.0.1"), Machine((), "127.0.0.1")
    finally:
        for name in made:  # with its link
            _ip("netns", "delete", name)


def _ip(*words: str) -> bool:
    """Whether a command of iproute2 succeeds."""
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *words], capture_output=True, timeout=TIMEOUT_SECONDS).returncode == 0
