// Kernels of the features family: the feature preprocessing ops of ai.onnx.ml.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// extract.cc
Status array_feature_extractor(const Call& call, Plan& plan);
Status feature_vectorizer(const Call& call, Plan& plan);

// label_encoder.cc
Status label_encoder(const Call& call, Plan& plan);

// scale.cc
Status binarizer(const Call& call, Plan& plan);
Status imputer(const Call& call, Plan& plan);
Status normalizer(const Call& call, Plan& plan);
Status scaler(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
