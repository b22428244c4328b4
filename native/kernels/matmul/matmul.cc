// The table of matmul kernels. Kernels of bf16 need AVX512_BF16, which registry.cc checks.
#include "kernels/matmul/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"matmul", Accepts::any, matmul},
    {"matmul_bf16", Accepts::any, matmul_bf16, nullptr, true},
    {"matmul_pack", Accepts::any, matmul_pack},
    {"matmul_pack_bf16", Accepts::any, matmul_pack_bf16, nullptr, true},
    {"matmul_packed", Accepts::any, matmul_packed},
    {"matmul_packed_bf16", Accepts::any, matmul_packed_bf16, nullptr, true},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(matmul, kKernels)
