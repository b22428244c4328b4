// The table of the kernels that move elements.
#include "kernels/move/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"concat", Accepts::any, concat},
    {"copy", Accepts::any, copy},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(move, kRows)
