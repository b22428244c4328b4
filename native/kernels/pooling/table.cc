// The kernel table of the pooling family.
#include "kernels/pooling/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"max_pool", Accepts::contiguous, max_pool},
    {"max_pool_indices_f32", Accepts::contiguous, max_pool_indices_f32},
    {"average_pool_f32", Accepts::contiguous, average_pool_f32},
    {"lp_pool_f32", Accepts::contiguous, lp_pool_f32},
    {"planar_average_pool", Accepts::contiguous, planar_average_pool},
    {"planar_lp_pool", Accepts::contiguous, planar_lp_pool},
    {"planar_max_pool", Accepts::contiguous, planar_max_pool},
    {"max_unpool", Accepts::contiguous, max_unpool},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(pooling, kKernels)
