// The kernel table of the select family: kernels that select elements by value.
#include "kernels/select/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"non_max", Accepts::contiguous, non_max_suppression, non_max_suppression_sizes},
    {"nonzero", Accepts::contiguous, nonzero, resolve_nonzero},
    {"top_k", Accepts::any, top_k},
    {"top_k_open", Accepts::any, top_k, top_k_sizes},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(select, kKernels)
