// Kernels of the normalize family, with their operands.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Inputs: x, scale, and optionally bias, skip (residual) and the bias of the skip. The statistics
// are over the axes from ints[0] on; ints[1], ints[2] and ints[3] are the numbers of the
// outputs that get mean, reciprocal standard deviation and sum; one past the last output: none.
// floats: epsilon.
Status layer_norm(const Call& call, Plan& plan);
Status rms_norm(const Call& call, Plan& plan);

// Inputs: x, scale, bias, mean, variance; ints: the channel axis, or -1; floats: epsilon.
Status batch_norm(const Call& call, Plan& plan);

// Inputs: x, scale, bias; ints: the number of groups, 0 for InstanceNormalization (one channel per
// group); floats: epsilon.
Status group_norm(const Call& call, Plan& plan);

// ints: axis, p.
Status lp_norm(const Call& call, Plan& plan);

// MeanVarianceNormalization. ints: the axes as a bit mask.
Status mean_variance(const Call& call, Plan& plan);

// LRN. ints: size, the number of channels in a sum; floats: alpha, beta, bias.
Status local_response(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
