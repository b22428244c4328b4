"""Quantization, dequantization, and matmul and convolution of quantized tensors."""
