// The kernel table of the random family.
#include "kernels/random/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"bernoulli", Accepts::contiguous, bernoulli},
    {"dropout", Accepts::contiguous, dropout},
    {"dropout_mask", Accepts::any, dropout_mask},
    {"multinomial", Accepts::contiguous, multinomial},
    {"random_normal", Accepts::contiguous, random_normal},
    {"random_uniform", Accepts::contiguous, random_uniform},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(random, kKernels)
