// The kernel table of the features family.
#include "kernels/features/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kKernels[] = {
    {"array_feature_extractor", Accepts::contiguous, array_feature_extractor},
    {"binarizer", Accepts::contiguous, binarizer},
    {"feature_vectorizer", Accepts::contiguous, feature_vectorizer},
    {"imputer", Accepts::contiguous, imputer},
    {"label_encoder", Accepts::contiguous, label_encoder},
    {"normalizer", Accepts::contiguous, normalizer},
    {"scaler", Accepts::contiguous, scaler},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(features, kKernels)
