"""On-device training with the interface of onnxruntime-training: artifacts, and the API that runs.

`artifacts` and `onnxblock` make the files, from a forward model; `api` trains with them.
"""
