// The family of linear models and of the ops that prepare features for them.
#include "kernels/linear_ml/rows.h"

namespace sdx::SDX_ISA {
namespace {

constexpr Kernel kRows[] = {
    {"array_feature_extractor", Accepts::contiguous, array_feature_extractor},
    {"binarizer", Accepts::contiguous, binarizer},
    {"feature_vectorizer", Accepts::contiguous, feature_vectorizer},
    {"imputer", Accepts::contiguous, imputer},
    {"label_encoder", Accepts::contiguous, label_encoder},
    {"linear_f32", Accepts::rows, linear_f32},
    {"linear_f64", Accepts::rows, linear_f64},
    {"normalizer", Accepts::contiguous, normalizer},
    {"scaler", Accepts::contiguous, scaler},
    {"svm", Accepts::rows, svm},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(linear_ml, kRows)
