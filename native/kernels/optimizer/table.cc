// The kernel table of the optimizer family.
#include "kernels/optimizer/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"accumulate_gradient", Accepts::contiguous, accumulate_gradient},
    {"accumulate_in_place", Accepts::contiguous, accumulate_in_place},
    {"adafactor_step", Accepts::contiguous, adafactor_step},
    {"adafactor_update", Accepts::contiguous, adafactor_update},
    {"adam_step", Accepts::contiguous, adam_step},
    {"adam_update", Accepts::contiguous, adam_update},
    {"gradient_norm", Accepts::contiguous, gradient_norm},
    {"lion_step", Accepts::contiguous, lion_step},
    {"sgd_step", Accepts::contiguous, sgd_step},
    {"sgd_update", Accepts::contiguous, sgd_update},
    {"step_control", Accepts::contiguous, step_control},
    {"store_state", Accepts::contiguous, store_state},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(optimizer, kKernels)
