"""What programs import from `onnxruntime.transformers`: fusions, float16, edits of ModelProtos.

The modules have onnxruntime's names. They rest on Sardonyx's graph, passes and conversions; the
package onnx is imported for the objects that callers pass and get.
"""
