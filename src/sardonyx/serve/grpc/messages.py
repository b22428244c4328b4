"""The messages of the protocol, made from its compiled description.

They live in a descriptor pool of their own: clients of the same protocol, which register messages
of the same names, work in the same process.
"""

from __future__ import annotations

import pathlib
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

COMPILED: Final = pathlib.Path(__file__).parent / "open_inference.binpb"
SERVICE: Final = "inference.GRPCInferenceService"


def _read() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    for file in files.file:
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(descriptor)
        for file in files.file
        for name, descriptor in pool.FindFileByName(file.name).message_types_by_name.items()
    }


MESSAGES: Final = _read()
InferRequestMessage: Final = MESSAGES["ModelInferRequest"]
InferResponseMessage: Final = MESSAGES["ModelInferResponse"]
