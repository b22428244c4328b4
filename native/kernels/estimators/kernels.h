// Kernels of the estimators family: linear models and support vector machines of ai.onnx.ml.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// LinearClassifier and LinearRegressor, in the precision of the weights.
// Operands: x, weights [target, feature], intercepts, class labels. ints: the output rule
// (estimator_output.h).
Status linear_f32(const Call& call, Plan& plan);
Status linear_f64(const Call& call, Plan& plan);
// The same for scores of float32 with weights [width, targets]; targets and intercepts are padded
// to a multiple of 16. Post-transforms: none, softmax and logistic; no binary rule.
Status linear_columns_f32(const Call& call, Plan& plan);
// SVMClassifier and SVMRegressor. Operands: x; support vectors [feature, vector], sorted by class,
// and their squared norms; weights [opponent, vector]; rho by pair of classes; vectors and labels
// by class; slopes and shifts of Platt scaling by pair. ints: the output rule, then the kernel
// type, the number of classes (0: a regressor), whether it is a one-class SVM, whether
// probabilities are computed. floats: gamma, coef0 and degree.
Status svm(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
