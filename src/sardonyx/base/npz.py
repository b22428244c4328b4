"""Arrays in .npz files, without pickled objects."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, NoSuchFile


def read_npz(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return all arrays of a .npz file; pickled objects are refused."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise NoSuchFile(f"there is no file {path}") from None
    except (ValueError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        why = "not a .npz file, or with pickled objects" if "pickle" in str(error) else error
        raise InvalidArgument(
            f"{path} cannot be read as arrays: {why}",
            hint="write it with numpy.savez(FILE, name=array, ...)",
        ) from None
