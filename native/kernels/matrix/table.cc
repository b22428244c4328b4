// The kernel table of the matrix family.
#include "kernels/matrix/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"matrix_determinant", Accepts::contiguous, determinant},
    {"matrix_inverse", Accepts::contiguous, inverse},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(matrix, kKernels)
