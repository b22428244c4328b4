"""`onnxruntime.capi.onnxruntime_inference_collection` is the module of that name in Sardonyx."""

import sys

from sardonyx.capi import onnxruntime_inference_collection

sys.modules[__name__] = onnxruntime_inference_collection
