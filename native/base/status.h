// How a step ended: well, or with one sentence about the data.
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
