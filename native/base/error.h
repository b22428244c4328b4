// The exception of the ONNX decoder (load/) for malformed bytes; bind/load.cc translates it to
// Python's DecodeError, a ValueError.
#pragma once

#include <stdexcept>

namespace sdx {

class DecodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sdx
