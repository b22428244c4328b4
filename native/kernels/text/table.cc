// The family of strings.
#include "kernels/text/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"category_one_hot", Accepts::any, texting::category_one_hot},
    {"text_concat", Accepts::any, texting::concat},
    {"text_equal", Accepts::any, texting::equal},
    {"text_find", Accepts::any, texting::find},
    {"text_one_hot", Accepts::any, texting::one_hot},
    {"text_where", Accepts::any, texting::where},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(text, kRows)
