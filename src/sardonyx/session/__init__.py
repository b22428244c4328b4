"""Sessions: onnxruntime's interface over a compiled program.

`inference` makes and runs them, `about` says what they tell, `settings` reads their options,
`binding` runs them on bound memory, `later` on other threads.
"""

from sardonyx.session.inference import InferenceSession

__all__ = ["InferenceSession"]
