// The rows of the family.
#include "kernels/sample/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"grid_sample", Accepts::contiguous, grid_sample},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(sample, kRows)
