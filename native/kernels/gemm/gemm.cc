// Matrix products.
#include "kernels/gemm/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"matmul", Accepts::any, matmul},
    {"matmul_pack", Accepts::any, matmul_pack},
    {"matmul_packed", Accepts::any, matmul_packed},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(gemm, kRows)
