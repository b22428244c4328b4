"""Matrix products: MatMul, Gemm, Einsum, and their fused forms."""
