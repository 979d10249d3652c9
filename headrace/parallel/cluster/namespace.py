"""Put a thread into its own network namespace, which nothing outside can reach, and list listening sockets.

See network_namespaces(7), unshare(2), netdevice(7), proc_pid_net(5). Linux alone.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

CLONE_NEWNET = 0x40000000  # of sched.h
GET_FLAGS, SET_FLAGS, GET_ADDRESS = 0x8913, 0x8914, 0x8915  # of sockios.h: requests of an interface
IFF_UP = 1  # of if.h
REQUEST = struct.Struct("16sH22s")  # struct ifreq: name, flags
LISTENING = "0A"  # the state, in /proc/net/tcp


class Listening(NamedTuple):
    """A TCP socket that waits for connections."""

    pid: int
    address: IPv4Address | IPv6Address
    port: int

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the socket."""
        mapped = getattr(self.address, "ipv4_mapped", None)
        return bool((mapped or self.address).is_loopback)

    def __str__(self) -> str:
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{host}:{self.port}"


def enter() -> None:
    """Move this thread, and all threads and processes that it starts from now on, into a network namespace with the
    loopback interface alone. Raises OSError where the system does not allow it."""
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no network namespaces")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    _request(SET_FLAGS, "lo", IFF_UP)


def reachable() -> dict[str, str]:
    """The addresses at which this thread's namespace can be reached, by interface, loopback left out."""
    found = {}
    for _, name in socket.if_nameindex():
        if name == "lo":
            continue
        with suppress(OSError):
            if REQUEST.unpack(_request(GET_FLAGS, name))[1] & IFF_UP:
                found[name] = socket.inet_ntoa(_request(GET_ADDRESS, name)[20:24])
    return found


def _request(number: int, interface: str, flags: int = 0) -> bytes:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, number, REQUEST.pack(interface.encode(), flags, b""))


def listening(processes: Iterable[int]) -> list[Listening]:
    """The listening sockets of processes, in whatever namespaces these are."""
    found = []
    for pid in processes:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            own = _sockets(pid)
            found += [Listening(pid, *where) for inode, where in _tables(pid) if inode in own]
    return sorted(set(found), key=lambda x: (x.pid, str(x)))


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    return inodes


def _tables(pid: int) -> list[tuple[str, tuple[IPv4Address | IPv6Address, int]]]:
    """Listening sockets in the namespaces of all threads of a process: inodes, addresses and ports."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for table in ("tcp", "tcp6"):
            with suppress(FileNotFoundError):
                lines = (task / "net" / table).read_text().splitlines()[1:]
                fields = (line.split() for line in lines)
                found += [(words[9], _decoded(words[1])) for words in fields if words[3] == LISTENING]
    return found


def _decoded(where: str) -> tuple[IPv4Address | IPv6Address, int]:
    """An address and a port as in /proc/net/tcp: words of 4 bytes in the machine's order, in hexadecimal digits."""
    address, _, port = where.partition(":")
    words = [int(address[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(address), 8)]
    return ip_address(b"".join(words)), int(port, 16)
