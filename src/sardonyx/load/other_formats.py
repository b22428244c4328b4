"""Names what a file is that is not an ONNX model: another format, or a model that is cut short."""

from __future__ import annotations

import re
from typing import Final

from sardonyx.errors import InvalidProtobuf

_HEAD: Final = 512  # bytes that are looked at
_CUT: Final = re.compile(
    r"the length is (\d+) bytes but only (\d+) are left, in ModelProto\.\w+ at byte \d+ of (\d+)$"
)
_MAX_BYTES: Final = 1 << 40  # bytes of a model: larger lengths are those of damaged files
_DOWNLOAD: Final = "download the file itself: the address leads to a page about it"
# A pattern of the first bytes, what the file is, and what to do.
_FORMATS: Final = (
    (rb"version https://git-lfs", "a Git LFS pointer, not the model itself", "run git lfs pull"),
    (rb"(?i)\s*(<!doctype html|<html|<head)", "an HTML page, not a model", _DOWNLOAD),
    (rb"\s*<\?xml", "an XML file, not a model", _DOWNLOAD),
    (rb"(?s)PK\x03\x04.*data\.pkl", "a PyTorch checkpoint", "export it with torch.onnx.export"),
    (rb"(?s)PK\x03\x04.*\.npyPK|PK\x03\x04.*\.npy", "a .npz file of arrays", "name the model"),
    (rb"PK\x03\x04", "a zip archive", "unpack it, and load the model"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf", "a compressed file", "unpack it, and load the model"),
    (rb"\x93NUMPY", "an array of numpy", "name the model"),
    (rb"\x80[\x02-\x05]", "a Python pickle", "export the model to ONNX"),
    (rb"(?s).{8}\{\s*\"", "a safetensors file", "name the model, which refers to it"),
    (rb"\x89HDF", "an HDF5 file, as Keras writes them", "convert it with tf2onnx"),
    (rb"(?s).{4}TFL3", "a TensorFlow Lite model", "convert it with tf2onnx"),
    (rb"GGUF", "a GGUF model", "export the model to ONNX"),
    (rb"\x7fELF|MZ|\xcf\xfa\xed\xfe", "a program or library", "name the model"),
    (rb"\x89PNG|\xff\xd8\xff|RIFF", "a picture or sound", "name the model"),
    (rb"\s*[{\[]\s*[\"{\[\]}\d]", "a JSON file, not a model", "name the model"),
)


def misread(name: str, data: memoryview, why: str) -> InvalidProtobuf:
    """Return the error for bytes that are not a model; `why` is what the decoder says."""
    head = bytes(data[:_HEAD])
    for pattern, what, hint in _FORMATS:
        if re.match(pattern, head):
            return InvalidProtobuf(f"{name} is {what}", hint=hint)
    if head and not head.strip(b"\0"):
        return InvalidProtobuf(
            f"{name} has zeros instead of a model", hint="copy or download it again"
        )
    if match := _CUT.search(why):
        needed, left, has = map(int, match.groups())
        whole = has - left + needed
        if whole < _MAX_BYTES:
            return InvalidProtobuf(
                f"{name} is cut short: {has:,} of {whole:,} bytes or more",
                hint="copy or download it again",
            )
    return InvalidProtobuf(f"{name} is not an ONNX model: {why}")
