"""Build information of onnxruntime for Windows."""

use_cuda = False
vs2019 = False
