// The kernel table of the optimizer family.
#include "kernels/optimizer/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"adafactor_step", Accepts::contiguous, adafactor_step},
    {"adam_step", Accepts::contiguous, adam_step},
    {"lion_step", Accepts::contiguous, lion_step},
    {"sgd_step", Accepts::contiguous, sgd_step},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(optimizer, kKernels)
