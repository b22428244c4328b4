// The rows of what selects by value.
#include "kernels/select/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"non_max", Accepts::contiguous, non_max, non_max_sizes},
    {"top_k", Accepts::any, top_k},
    {"top_k_open", Accepts::any, top_k, top_k_sizes},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(select, kRows)
