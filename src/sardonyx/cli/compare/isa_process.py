"""One side of `sardonyx diff`, in its own process: a process chooses its ISA when it starts.

Requests and answers are length-prefixed pickles on the pipes of standard input and output; both
processes run this package, and nobody else writes to the pipes.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, Self

from sardonyx.base.records import replace
from sardonyx.cli.compare.sides import ComparedModel, Key, SardonyxSide, SideOptions
from sardonyx.errors import Fail, SardonyxError

_LENGTH: Final = struct.Struct("<Q")


class IsaSide:
    """A side whose sessions are in another process."""

    def __init__(self, options: SideOptions) -> None:
        environment = {**os.environ, "SARDONYX_ISA": options.isa}
        self._isa = options.isa
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._request(replace(options, isa=""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it

    def can_compute(self, key: Key) -> bool:
        """Return whether the value is there."""
        return bool(self._request(("can_compute", key)))

    def compute(self, keys: Sequence[Key], feed: Mapping[str, Any]) -> list[Any]:
        """Return values of one run."""
        results: list[Any] = self._request(("compute", list(keys), dict(feed)))
        return results

    def outputs(self, feed: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the unchanged model."""
        results: list[Any] = self._request(("outputs", dict(feed)))
        return results

    def _request(self, request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _write(self._process.stdin, request)
            answer, error = _read(self._process.stdout)
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            raise Fail(
                f"the process with SARDONYX_ISA={self._isa} ended with status {code}"
            ) from None
        if error:
            raise Fail(f"with SARDONYX_ISA={self._isa}: {error}")
        return answer


def _write(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def _serve() -> None:
    """Answer requests until the end of standard input; the first one is the side's options."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries goes to standard error, not between the answers
    side: SardonyxSide | None = None
    while True:
        try:
            request = _read(sys.stdin.buffer)
        except EOFError:
            return
        answer, message = None, ""
        try:
            if side is None:
                side = SardonyxSide(ComparedModel(request.model), request)
            else:
                method, *arguments = request
                answer = getattr(side, method)(*arguments)
        except (SardonyxError, OSError, MemoryError) as error:
            message = str(error)
        _write(answers, (answer, message))


if __name__ == "__main__":
    _serve()
