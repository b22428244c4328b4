"""What import, load and run ask of the system: no socket, no process, no file but known ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

import sardonyx
from sardonyx.models import DIGITS

PROGRAM = """
import numpy as np
import sardonyx
for providers in (None, ["CPUExecutionProvider"]):
    session = sardonyx.InferenceSession("model.onnx", providers=providers)
    session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
"""
SOCKET = "import socket\nsocket.socket().close()\n"
WRITES = "open('left.txt', 'w').close()\n"
READS = (
    "open('/etc/hostname' if __import__('os').path.exists('/etc/hostname') else '/etc/passwd')\n"
)
# Prints the audit events of a program, and its open descriptors that are sockets.
AUDITED = """
import sys
events = []
sys.addaudithook(lambda name, args: events.append((name, args)))
exec(open(sys.argv[1]).read())
seen = [(name, [a if isinstance(a, (str, int)) else str(a) for a in args]) for name, args in events]
import json, os
ends = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")] if os.path.isdir("/proc/self/fd") else []
print(json.dumps([seen, [end for end in ends if end.startswith("socket:")]]))
"""
CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|\?|0x[0-9a-f]+)")
OPENS = ("open", "openat", "openat2", "creat")
# Calls that change files by their names.
CHANGES = (
    *("mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link"),
    *("linkat", "symlink", "symlinkat", "truncate", "chmod", "fchmodat", "utimensat", "mknod"),
)
NETWORK = (
    *("socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto"),
    *("sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg", "getsockopt", "setsockopt"),
)
WRITING = re.compile("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_TMPFILE")
PACKAGE = Path(sardonyx.__file__).resolve().parent
# Files that Sardonyx itself writes without being asked: its import cache, and Python's bytecode.
CACHES = re.compile(r"/_import_cache\.[^/]*$|/\.[^/]*import_cache[^/]*$|/__pycache__(/[^/]*)?$")
ROOTS = [
    *(Path(p) for p in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())),
    *(Path(p) for p in sys.path if p),
    PACKAGE,
    *(Path(p) for p in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/proc", "/sys")),
    # What the dynamic loader and the C library read: libraries, locales, the time zone.
    *(Path(p) for p in ("/etc/ld.so.cache", "/usr/share/locale", "/etc/localtime")),
    *(Path(p) for p in ("/usr/share/zoneinfo", "/dev/null", "/dev/urandom")),
]


@dataclass(frozen=True)
class Seen:
    """What a program did, as paths and names of calls."""

    network: list[str]
    processes: list[str]
    read: list[Path]
    written: list[Path]

    def faults(self, folder: Path) -> list[str]:
        """What it did beyond its task, when `folder` holds it and the model."""
        roots = {path for p in (*ROOTS, folder) for path in (p, p.resolve())}
        stray = [
            path
            for path in self.read
            if not any(p.is_relative_to(r) for r in roots for p in (path, path.resolve()))
        ]
        return [
            *(f"uses the network: {call}" for call in self.network),
            *(f"starts a process: {call}" for call in self.processes),
            *(f"reads {path}" for path in stray),
            *(f"writes {path}" for path in self.written if not CACHES.search(str(path))),
        ]


def ran(command: list[str], folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SARDONYX_")}
    environment |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def traced(program: Path, folder: Path) -> Seen:
    """A program seen by strace: its system calls, and those of its threads and children."""
    logs = program.with_suffix(".trace")
    trace = f"trace={','.join(f'?{call}' for call in (*OPENS, *CHANGES, *NETWORK))},?execve"
    ran(
        ["strace", "-ff", "-qq", "-o", str(logs), "-e", trace, sys.executable, str(program)], folder
    )
    seen = Seen([], [], [], [])
    for log in logs.parent.glob(f"{logs.name}.*"):
        for call in map(CALL.match, log.read_text().splitlines()):
            if call is None:
                continue
            name, arguments, result = call.groups()
            paths = [Path(os.path.abspath(folder / p)) for p in re.findall(r'"([^"]*)"', arguments)]
            if name in NETWORK:
                seen.network.append(call[0])
            elif name == "execve":
                seen.processes.append(call[0])
            elif result.startswith("-"):
                continue
            elif name in CHANGES or name == "creat" or WRITING.search(arguments):
                seen.written.extend(paths)
            else:
                seen.read.extend(paths)
    del seen.processes[:1]  # the interpreter itself
    return seen


def audited(program: Path, folder: Path) -> Seen:
    """A program seen by Python: its audit events, and the sockets that it has at its end."""
    events, sockets = json.loads(ran([sys.executable, "-c", AUDITED, str(program)], folder))
    seen = Seen(list(sockets), [], [], [])
    for name, arguments in events:
        if name.startswith("socket."):
            seen.network.append(name)
        elif name in ("subprocess.Popen", "os.exec", "os.fork", "os.system", "os.posix_spawn"):
            seen.processes.append(name)
        elif name in ("os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.rmdir"):
            seen.written.append(Path(os.path.abspath(folder / arguments[0])))
        elif name == "open" and isinstance(arguments[0], str):
            path, flags = Path(os.path.abspath(folder / arguments[0])), arguments[2]
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if path.exists():
                (seen.written if writes else seen.read).append(path)
    return seen


WATCHERS = [
    pytest.param(
        traced,
        marks=pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    ),
    audited,
]


def watched(watcher: object, text: str, folder: Path) -> list[str]:
    shutil.copy(DIGITS, folder / "model.onnx")
    program = folder / "program.py"
    program.write_text(text)
    return watcher(program, folder).faults(folder)  # type: ignore[operator]


@pytest.mark.parametrize("watcher", WATCHERS)
def test_import_load_and_run(watcher: object, tmp_path: Path) -> None:
    assert watched(watcher, PROGRAM, tmp_path) == []


@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SOCKET, "uses the network"),
        (WRITES, "writes"),
        (READS, "reads /etc"),
        ("import subprocess\nsubprocess.run(['true'])\n", "starts a process"),
    ],
    ids=["socket", "write", "read", "process"],
)
def test_other_system_calls_are_detected(
    watcher: object, text: str, words: str, tmp_path: Path
) -> None:
    assert any(words in fault for fault in watched(watcher, PROGRAM + text, tmp_path))
