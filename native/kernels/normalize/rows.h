// The rows of the family, by the file that has them.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Inputs: x, scale, bias?, skip?, bias of the skip?. The statistics are over the axes from ints[0]
// on; ints[1], ints[2] and ints[3] are the outputs of mean, reciprocal deviation and sum, those
// behind the last output not wanted. floats: epsilon.
Status layer_norm(const Call& call, Plan& plan);
Status rms_norm(const Call& call, Plan& plan);

// Inputs: x, scale, bias, mean, variance; ints: the axis of channels, or -1; floats: epsilon.
Status batch_norm(const Call& call, Plan& plan);

// Inputs: x, scale, bias; ints: groups of channels, 0 for one channel each; floats: epsilon.
Status group_norm(const Call& call, Plan& plan);

// ints: axis, p.
Status lp_norm(const Call& call, Plan& plan);

// ints: the axes as bits.
Status mean_variance(const Call& call, Plan& plan);

// ints: the number of channels in a sum; floats: alpha, beta, bias.
Status local_response(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
