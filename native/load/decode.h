// From the bytes of an ONNX file to records that view them. All raise DecodeError.
#pragma once

#include "load/records.h"

namespace sdx {

Model decode_model(std::string_view buffer);
Tensor decode_tensor(std::string_view buffer);

// Typed data (float_data, int32_data, ...) of a tensor whose elements do not lie in place.
uint64_t count_elements(const Tensor& tensor);
std::vector<Text> read_strings(const Tensor& tensor);

// Writes exactly `n` elements; T is the C++ type of tensor.storage.
template <class T>
void read_elements(const Tensor& tensor, T* out, uint64_t n);

}  // namespace sdx
