// The kernel table of the estimators family.
#include "kernels/estimators/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"linear_columns_f32", Accepts::rows, linear_columns_f32},
    {"linear_f32", Accepts::rows, linear_f32},
    {"linear_f64", Accepts::rows, linear_f64},
    {"svm", Accepts::rows, svm},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(estimators, kKernels)
