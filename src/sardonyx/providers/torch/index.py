"""The torch kernels of all ops: tables `KERNELS` of the modules named as the op families."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Final

from sardonyx.base.name_index import import_if_present, module_names
from sardonyx.ops import families
from sardonyx.providers.torch.kernel import TorchKernels


def modules() -> Iterator[ModuleType]:
    """The modules of torch kernels: one per family, or those of the family's folder."""
    for family in families():
        module = import_if_present(f"sardonyx.providers.torch.{family}")
        if module is not None and (folders := getattr(module, "__path__", None)):
            for name in module_names(folders[0]):
                yield importlib.import_module(f"{module.__name__}.{name}")
        elif module is not None:
            yield module


KERNELS: Final[TorchKernels] = {
    key: kernel
    for module in modules()
    for key, kernel in getattr(module, "KERNELS", {}).items()  # some only have helpers
}
