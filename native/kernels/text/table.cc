// The kernel table of the text family: kernels on string tensors.
#include "kernels/text/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"category_one_hot", Accepts::any, texting::category_one_hot},
    {"count_grams", Accepts::contiguous, texting::count_grams},
    {"murmur_hash", Accepts::contiguous, texting::hash},
    {"normalize_texts", Accepts::contiguous, texting::normalize},
    {"normalize_texts_open", Accepts::contiguous, texting::normalize, texting::resolve_normalize},
    {"numbers_to_texts", Accepts::contiguous, texting::write_numbers},
    {"split_texts", Accepts::contiguous, texting::split, texting::resolve_split},
    {"text_concat", Accepts::any, texting::concat},
    {"text_equal", Accepts::any, texting::equal},
    {"text_find", Accepts::any, texting::find},
    {"text_match", Accepts::any, texting::full_match},
    {"text_one_hot", Accepts::any, texting::one_hot},
    {"text_where", Accepts::any, texting::where},
    {"texts_to_numbers", Accepts::contiguous, texting::read_numbers},
    {"tokenize", Accepts::contiguous, texting::tokenize, texting::resolve_tokenize},
    {"unique_texts", Accepts::contiguous, texting::unique, texting::resolve_unique},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(text, kKernels)
