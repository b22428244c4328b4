"""Compiles the description of the gRPC service, which sardonyx.serve reads.

tools/grpc_messages.py            # writes src/sardonyx/serve/grpc/open_inference.binpb
tools/grpc_messages.py --check    # fails if the file is not what the .proto compiles to
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent.parent / "src" / "sardonyx" / "serve" / "grpc"
SOURCE: Final = "open_inference.proto"


def compiled() -> bytes:
    """Return the file descriptors of the service, without comments."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "compiled"
        arguments = ["protoc", f"-I{FOLDER}", f"--descriptor_set_out={target}", SOURCE]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"{SOURCE} does not compile")
        return target.read_bytes()


def main() -> int:
    """Write or check the compiled description."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    target = (FOLDER / SOURCE).with_suffix(".binpb")
    content = compiled()
    if not parser.parse_args().check:
        target.write_bytes(content)
    elif not target.exists() or target.read_bytes() != content:
        print(f"{target} is not current: run tools/grpc_messages.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
