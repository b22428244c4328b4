"""Finds the file system of a device; mapped weights on a network file system give a warning."""

from __future__ import annotations

import os
from typing import Final

from sardonyx.base.records import frozen

_MOUNTS: Final = "/proc/self/mountinfo"

# File system types as Linux names them. A FUSE file system may be anything: those that serve local
# files only are listed.
_NETWORK: Final = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
))  # fmt: skip
_LOCAL_FUSE: Final = frozenset((
    "bindfs", "ecryptfs", "encfs", "fuse-overlayfs", "fuseiso", "gocryptfs", "lxcfs", "mergerfs",
    "ntfs-3g", "portal", "squashfuse", "unionfs",
))  # fmt: skip


@frozen
class Mount:
    """A mounted file system."""

    point: str
    kind: str

    @property
    def is_network(self) -> bool:
        """Whether reading a file may need the network."""
        family, _, program = self.kind.partition(".")
        return family in _NETWORK and program not in _LOCAL_FUSE


_is_network: Final[dict[int, bool]] = {}  # by device number
_warned: Final[set[int]] = set()


def mount_of(device: int) -> Mount | None:
    """Return the mount of a device number; None if it is unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                head, _, tail = line.partition(" - ")
                fields = head.split()
                if len(fields) > 4 and fields[2] == number and tail:
                    # mountinfo escapes spaces as \040.
                    return Mount(fields[4].replace("\\040", " "), tail.split()[0])
    except OSError:
        pass
    return None


def is_network(device: int) -> bool:
    """Return whether a device is remote; file times are then from another machine's clock."""
    if device not in _is_network:
        mount = mount_of(device)
        _is_network[device] = mount is not None and mount.is_network
    return _is_network[device]


def warn_of_network(path: str, device: int) -> None:
    """Warn, once per process and mount, that weights are read over a network during runs."""
    if device in _warned or not is_network(device):
        return
    _warned.add(device)
    mount = mount_of(device)
    if mount is None:  # unmounted meanwhile
        return
    from sardonyx.base.log import logger  # imported late: most files are local

    logger.warning(
        "%s is on a network file system (%s at %s): its weights are read from there while the "
        "model runs, and the process is killed (SIGBUS) if they cannot be; the session config "
        "entry sardonyx.weights=copied reads them once, into memory",
        path, mount.kind, mount.point,
    )  # fmt: skip
