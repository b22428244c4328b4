"""Numbers in few bits: quantizing, dequantizing, and products of quantized numbers."""
