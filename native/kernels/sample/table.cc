// The kernel table of the sample family.
#include "kernels/sample/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"affine_grid", Accepts::contiguous, affine_grid},
    {"affine_grid_at_run", Accepts::contiguous, affine_grid, affine_grid_sizes},
    {"crop_and_resize", Accepts::contiguous, crop_and_resize},
    {"deform_columns", Accepts::contiguous, deform_columns},
    {"grid_sample", Accepts::contiguous, grid_sample},
    {"max_roi_pool", Accepts::contiguous, max_roi_pool},
    {"roi_align", Accepts::contiguous, roi_align},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(sample, kKernels)
