// Kernels of the estimators family: linear models and support vector machines of ai.onnx.ml.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// LinearClassifier and LinearRegressor, in the precision of the weights.
// Operands: x, weights [target, feature], intercepts, class labels. ints: the rule.
Status linear_f32(const Call& call, Plan& plan);
Status linear_f64(const Call& call, Plan& plan);
// SVMClassifier and SVMRegressor.
Status svm(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
