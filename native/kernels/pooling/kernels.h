// Kernels of the pooling family. Windows move over images of one to three spatial axes; pooling of
// whole images is a reduction (kernels/reduce).
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Of channels-last images (NHWC).
Status max_pool(const Call& call, Plan& plan);
Status max_pool_indices_f32(const Call& call, Plan& plan);
Status average_pool_f32(const Call& call, Plan& plan);
Status lp_pool_f32(const Call& call, Plan& plan);

// Of planar images (NCHW).
Status planar_max_pool(const Call& call, Plan& plan);
Status planar_average_pool(const Call& call, Plan& plan);
Status planar_lp_pool(const Call& call, Plan& plan);

// Of images in any layout: elements of any type, and their indices.
Status max_unpool(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
