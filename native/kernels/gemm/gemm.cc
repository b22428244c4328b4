// Matrix products.
#include "kernels/gemm/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"fma_limit", Accepts::contiguous, fma_limit},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(gemm, kRows)
