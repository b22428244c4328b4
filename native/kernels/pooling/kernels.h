// Kernels of the pooling family, for channels-last (NHWC) images of one to three spatial axes.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status max_pool(const Call& call, Plan& plan);
Status max_pool_indices_f32(const Call& call, Plan& plan);
Status average_pool_f32(const Call& call, Plan& plan);
Status lp_pool_f32(const Call& call, Plan& plan);
Status global_max_pool_f32(const Call& call, Plan& plan);
Status global_average_pool_f32(const Call& call, Plan& plan);
Status global_lp_pool_f32(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
