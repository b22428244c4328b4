"""System calls, and words of one operating system, stand in native/os: one file per system."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[1] / "native"
SOURCES = [
    path
    for path in sorted(NATIVE.rglob("*"))
    if path.suffix in (".cc", ".h", ".inc", ".in") and path.parent != NATIVE / "os"
]
OF_A_SYSTEM = re.compile(
    r"#include <(sys/|linux/|mach/|unistd|pthread|sched\.|fcntl|signal|poll|dlfcn|windows)"
    r"|\b(futex|mremap|mmap|munmap|madvise|msync|pthread_\w+|sched_\w+|syscall|sysconf|prctl)\s*\("
    r"|\b(aligned_alloc|posix_memalign|_aligned_malloc|memfd_create|VirtualAlloc)\s*\(|\bfork\("
    r"|\b(futex|mremap|pthread_atfork)\b|__linux__|__gnu_linux__|__APPLE__|_WIN32|[\"/]/?(proc|sys)/"
)


def test_the_pattern_finds_system_calls() -> None:
    for line in (
        "#include <sys/mman.h>",
        "madvise(data, bytes, MADV_DONTNEED);",
        'fopen("/proc/self/status", "r")',
        "#if defined(__linux__)",
    ):
        assert OF_A_SYSTEM.search(line)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(NATIVE)))
def test_no_system_calls(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        assert not OF_A_SYSTEM.search(line), f"{path}:{number} belongs in native/os: {line}"
