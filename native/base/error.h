// The exception for bytes that are not the model they claim to be; bind/ turns it into Python's.
#pragma once

#include <stdexcept>

namespace sdx {

class DecodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sdx
