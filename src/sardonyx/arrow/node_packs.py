"""One copy of the packed weights for the sessions of all processes of a machine.

The first process packs, writes the pack to the machine's folder and maps it; processes that start
meanwhile wait for it, and all later ones find a marker and map the pack immediately.
"""

from __future__ import annotations

import fcntl
import os
import tempfile

from sardonyx.base.atomic_file import writing
from sardonyx.base.digest import blake2b
from sardonyx.errors import InvalidArgument
from sardonyx.ort.options import SessionOptions
from sardonyx.session.inference import InferenceSession


def default_folder() -> str:
    """Return the folder for packs of this user on this machine."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.access(os.path.dirname(cache) or "/", os.W_OK):
        cache = tempfile.gettempdir()
    return os.path.join(cache, f"sardonyx-packs-{os.getuid()}")


def open_session(model: str | bytes, threads: int, folder: str | None) -> InferenceSession:
    """Return a session with so many threads; its pack is shared through the folder, if given."""
    if folder is None:
        return _session(model, threads, None)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _check_owner(folder)
    marker = os.path.join(folder, f"{_key(model)}.packed")
    if os.path.exists(marker):
        return _session(model, threads, folder)
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        session = _session(model, threads, folder)
        if not os.path.exists(marker):
            del session  # with its own copy of the packed weights
            with writing(marker):
                pass
            session = _session(model, threads, folder)
        return session


def _check_owner(folder: str) -> None:
    """Raise if others can put packs into the folder, which may be in a place that all write to."""
    status = os.stat(folder)
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise InvalidArgument(
            f"others than this user can write to the folder of packs {folder}",
            hint="chmod go-w it if it is yours, or choose another with pack_cache",
        )


def _session(model: str | bytes, threads: int, folder: str | None) -> InferenceSession:
    options = SessionOptions()
    options.intra_op_num_threads = threads
    if folder is not None:
        options.add_session_config_entry("sardonyx.pack_cache", folder)
    return InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _key(model: str | bytes) -> str:
    """Return a key of the model. It only decides whether a process waits for another one."""
    if isinstance(model, bytes):
        return blake2b(model, digest_size=16).hexdigest()
    stamp = os.stat(model)
    return _key(repr((model, stamp.st_size, stamp.st_mtime_ns, stamp.st_ino)).encode())
