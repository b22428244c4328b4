// The result of a step: success, or one sentence about the data. The sentence is stored inline, so
// that kernels, which are compiled without exceptions, need no allocation to report an error.
#pragma once

#include "base/inline.h"

namespace sdx {

class [[nodiscard]] Status {
 public:
  SDX_INLINE Status() { text_[0] = 0; }

  __attribute__((format(printf, 1, 2))) static Status fail(const char* format, ...);

  SDX_INLINE bool ok() const { return text_[0] == 0; }
  SDX_INLINE const char* text() const { return text_; }

 private:
  char text_[160];
};

}  // namespace sdx
