"""The file system of a file: mapping weights from a network file system gives a warning."""

from __future__ import annotations

import os
from typing import Final

from sardonyx.base.records import frozen

_MOUNTS: Final = "/proc/self/mountinfo"

# Types as the system names them. A type of FUSE is a program's own, and may be anything: those that
# work on local files alone are named.
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
    """A file system and where it hangs."""

    point: str
    kind: str

    @property
    def is_network(self) -> bool:
        """Whether a page of a file may have to come over a network."""
        family, _, program = self.kind.partition(".")
        return family in _NETWORK and program not in _LOCAL_FUSE


_known: Final[dict[int, bool]] = {}  # devices that were looked at, and whether by a network
_warned: Final[set[int]] = set()


def mount_of(device: int) -> Mount | None:
    """The mount of a device number; None where the system does not tell."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                head, _, tail = line.partition(" - ")
                fields = head.split()
                if len(fields) > 4 and fields[2] == wanted and tail:
                    # Spaces in names are written as \040 there.
                    return Mount(fields[4].replace("\\040", " "), tail.split()[0])
    except OSError:
        pass
    return None


def is_network(device: int) -> bool:
    """Whether files of a device come over a network, with times of another machine's clock."""
    if device not in _known:
        mount = mount_of(device)
        _known[device] = mount is not None and mount.is_network
    return _known[device]


def warn_of_network(path: str, device: int) -> None:
    """Says once per process and mount that weights are read over a network while a model runs."""
    if device in _warned or not is_network(device):
        return
    _warned.add(device)
    mount = mount_of(device)
    if mount is None:  # gone since
        return
    from sardonyx.base.log import logger  # most files are on a local disk

    logger.warning(
        "%s is on a network file system (%s at %s): its weights are read from there while the "
        "model runs, and the process is killed (SIGBUS) if they cannot be; the session config "
        "entry sardonyx.weights=copied reads them once, into memory",
        path, mount.kind, mount.point,
    )  # fmt: skip
