"""Sessions: onnxruntime's interface over a compiled program.

`inference` creates and runs sessions, `introspection` and `run_methods` are the mixins with the
rest of InferenceSession's methods. `compile_config`, `placement_config` and `run_config`
translate SessionOptions and their config keys. `feeds` checks inputs, `results`
prepares outputs, `io_binding` and `bound_memory` run on bound memory.
"""

from sardonyx.session.inference import InferenceSession

__all__ = ["InferenceSession"]
