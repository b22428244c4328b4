// The kernel table of the reduce family.
#include "kernels/reduce/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"reduce_sum", Accepts::any, reduce_sum},
    {"reduce_mean", Accepts::any, reduce_mean},
    {"reduce_max", Accepts::any, reduce_max},
    {"reduce_min", Accepts::any, reduce_min},
    {"reduce_prod", Accepts::any, reduce_prod},
    {"reduce_l1", Accepts::any, reduce_l1},
    {"reduce_l2", Accepts::any, reduce_l2},
    {"reduce_sum_square", Accepts::any, reduce_sum_square},
    {"reduce_log_sum", Accepts::any, reduce_log_sum},
    {"reduce_log_sum_exp", Accepts::any, reduce_log_sum_exp},
    {"arg_max", Accepts::any, arg_max},
    {"arg_min", Accepts::any, arg_min},
    {"running_sum", Accepts::any, cumulative_sum},
    {"running_prod", Accepts::any, cumulative_prod},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(reduce, kKernels)
