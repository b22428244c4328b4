// The kernel table of the move family. Kernels named `..._at_run` size their output from data.
#include "kernels/move/kernels.h"

namespace sdx::SDX_ISA::moving {
namespace {

constexpr Kernel kKernels[] = {
    {"concat", Accepts::any, concat},
    {"copy", Accepts::any, copy},
    {"expand_at_run", Accepts::any, expand, resolve_expand},
    {"eye", Accepts::any, eye},
    {"fill", Accepts::any, fill},
    {"fill_at_run", Accepts::contiguous, fill, resolve_fill},
    {"pad", Accepts::contiguous, pad},
    {"pad_at_run", Accepts::contiguous, pad_at_run, resolve_pad},
    {"range", Accepts::contiguous, range},
    {"range_at_run", Accepts::contiguous, range, resolve_range},
    {"rearrange", Accepts::contiguous, rearrange},
    {"reshape_at_run", Accepts::any, copy, resolve_reshape},
    {"reverse_sequence", Accepts::contiguous, reverse_sequence},
    {"sizes", Accepts::any, sizes},
    {"slice_at_run", Accepts::contiguous, slice, resolve_slice},
    {"split_at_run", Accepts::contiguous, split, resolve_split},
    {"tile", Accepts::any, tile},
    {"tile_at_run", Accepts::any, tile, resolve_tile},
    {"trilu", Accepts::contiguous, trilu},
};

}  // namespace
}  // namespace sdx::SDX_ISA::moving

SDX_FAMILY(move, moving::kKernels)
