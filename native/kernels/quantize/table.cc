// The kernel table of the quantize family.
#include "kernels/quantize/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"dequantize", Accepts::contiguous, dequantize},
    {"dynamic_quantize", Accepts::contiguous, dynamic_quantize},
    {"lookup", Accepts::contiguous, lookup},
    {"qadd", Accepts::contiguous, int8::qadd},
    {"qconv", Accepts::contiguous, int8::qconv},
    {"qdepthwise", Accepts::contiguous, int8::qdepthwise},
    {"qdepthwise_pack", Accepts::contiguous, int8::qdepthwise_pack},
    {"qgemm_pack", Accepts::contiguous, int8::qgemm_pack},
    {"qgrouped", Accepts::contiguous, int8::qgrouped},
    {"qgrouped_pack", Accepts::contiguous, int8::qgrouped_pack},
    {"qmatmul", Accepts::contiguous, int8::qmatmul},
    {"qmean", Accepts::contiguous, int8::qmean},
    {"quantize", Accepts::contiguous, quantize},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(quantize, kKernels)
