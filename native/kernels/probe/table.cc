// The kernel table of the probe family.
#include "kernels/probe/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"isa_name", Accepts::contiguous, isa_name},
    {"fma_limit", Accepts::contiguous, fma_limit},
    {"fma_limit_64", Accepts::contiguous, fma_limit_64},
    {"dot_limit", Accepts::contiguous, dot_limit},
    {"bf16_limit", Accepts::contiguous, bf16_limit, nullptr, true},
    {"stream_limit", Accepts::contiguous, stream_limit},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(probe, kKernels)
