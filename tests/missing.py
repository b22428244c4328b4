"""Optional packages: tests that need a missing one are skipped, with its name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sardonyx.errors import NotImplemented

# What is imported, by the name that it is installed by.
OPTIONAL = {
    "google-re2": "re2",
    "pillow": "PIL",
    "onnxruntime": "onnxruntime",
    "torch": "torch",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "prometheus-client": "prometheus_client",
    "grpcio": "grpc",
    "grpcio-tools": "grpc_tools",
    "tokenizers": "tokenizers",
}
_NEEDS = re.compile(r"needs the package ([\w-]+)")  # as ops say that import one when they run


def reason(error: BaseException) -> str | None:
    """Why an error is none of the code under test; None if it is one."""
    for each in _chain(error):
        name = None
        if isinstance(each, ModuleNotFoundError) and each.name is not None:
            name = each.name.partition(".")[0]
        elif isinstance(each, NotImplemented) and (found := _NEEDS.search(each.what)):
            name = OPTIONAL.get(found[1].lower())
        if name in OPTIONAL.values() and not _is_there(name):
            return f"the package of the module {name} is missing"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_there(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


class Module(pytest.Module):
    """A module of tests, skipped as a whole where it imports what is missing."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()
        except self.CollectError as error:
            why = reason(error)
            if why is None:
                raise
            raise pytest.skip.Exception(why, allow_module_level=True) from None
