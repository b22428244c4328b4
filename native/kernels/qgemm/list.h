// The rows of the family that other files of it define.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA::q8 {

Status qadd(const Call& call, Plan& plan);
Status qconv(const Call& call, Plan& plan);
Status qdepthwise(const Call& call, Plan& plan);
Status qdepthwise_pack(const Call& call, Plan& plan);
Status qgemm_pack(const Call& call, Plan& plan);
Status qmean(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA::q8
