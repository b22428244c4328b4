// The kernel table of the gather family: kernels that read or write at indices. Those named
// `..._at_run` size their output from data.
#include "kernels/gather/kernels.h"

namespace sdx::SDX_ISA::gathering {
namespace {

constexpr Kernel kKernels[] = {
    {"compress", Accepts::contiguous, compress, resolve_compress},
    {"gather", Accepts::contiguous, gather},
    {"gather_elements", Accepts::contiguous, gather_elements},
    {"gather_nd", Accepts::contiguous, gather_nd},
    {"one_hot", Accepts::contiguous, one_hot},
    {"one_hot_at_run", Accepts::contiguous, one_hot, resolve_one_hot},
    {"scatter_elements", Accepts::contiguous, scatter_elements},
    {"scatter_nd", Accepts::contiguous, scatter_nd},
    {"tensor_scatter", Accepts::contiguous, tensor_scatter},
};

}  // namespace
}  // namespace sdx::SDX_ISA::gathering

SDX_FAMILY(gather, gathering::kKernels)
