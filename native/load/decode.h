// Decodes an ONNX file into records that refer to its bytes. Throws DecodeError for malformed
// bytes. Weights are skipped, not copied: decoding touches only the structure of the file. There is
// no 2 GiB limit. Thread-safe: pure functions over a buffer that must not change.
#pragma once

#include "load/records.h"

namespace sdx {

Model decode_model(std::string_view buffer);
Tensor decode_tensor(std::string_view buffer);

// Typed data (float_data, int32_data, ...) of a tensor whose elements are not contiguous in the
// file.
uint64_t count_elements(const Tensor& tensor);
std::vector<std::string_view> read_strings(const Tensor& tensor);

// Writes exactly `n` elements; T is the C++ type of tensor.storage.
template <class T>
void read_elements(const Tensor& tensor, T* out, uint64_t n);

}  // namespace sdx
