// The kernel table of the normalize family.
#include "kernels/normalize/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"layer_norm", Accepts::any, layer_norm},
    {"rms_norm", Accepts::any, rms_norm},
    {"batch_norm", Accepts::any, batch_norm},
    {"group_norm", Accepts::contiguous, group_norm},
    {"lp_norm", Accepts::any, lp_norm},
    {"mean_variance", Accepts::any, mean_variance},
    {"local_response", Accepts::any, local_response},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(normalize, kKernels)
