// The kernel table of the pooling family.
#include "kernels/pooling/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"max_pool", Accepts::contiguous, max_pool},
    {"max_pool_indices_f32", Accepts::contiguous, max_pool_indices_f32},
    {"average_pool_f32", Accepts::contiguous, average_pool_f32},
    {"lp_pool_f32", Accepts::contiguous, lp_pool_f32},
    {"global_max_pool_f32", Accepts::contiguous, global_max_pool_f32},
    {"global_average_pool_f32", Accepts::contiguous, global_average_pool_f32},
    {"global_lp_pool_f32", Accepts::contiguous, global_lp_pool_f32},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(pooling, kKernels)
