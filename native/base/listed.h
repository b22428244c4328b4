// Sizes as messages show them: (2, 3).
#pragma once

#include <cstdint>

namespace sdx {

struct Listed {
  char text[64];
};

Listed listed(const int64_t* sizes, int n);

}  // namespace sdx
