// Kernels of the reduce family.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Reductions take the reduced axes as a bit mask in ints[0].
Status reduce_sum(const Call& call, Plan& plan);
Status reduce_mean(const Call& call, Plan& plan);
Status reduce_max(const Call& call, Plan& plan);
Status reduce_min(const Call& call, Plan& plan);
Status reduce_prod(const Call& call, Plan& plan);
Status reduce_l1(const Call& call, Plan& plan);
Status reduce_l2(const Call& call, Plan& plan);
Status reduce_sum_square(const Call& call, Plan& plan);
Status reduce_log_sum(const Call& call, Plan& plan);
Status reduce_log_sum_exp(const Call& call, Plan& plan);

// ints: axis, select_last_index.
Status arg_max(const Call& call, Plan& plan);
Status arg_min(const Call& call, Plan& plan);

// CumSum and CumProd. ints: axis, exclusive, reverse.
Status cumulative_sum(const Call& call, Plan& plan);
Status cumulative_prod(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
