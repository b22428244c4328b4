#include "base/format_shape.h"

#include <cstdio>

namespace sdx {

ShapeText format_shape(const int64_t* sizes, int n) {
  ShapeText shape;
  constexpr int kCapacity = sizeof shape.text - 5;  // leaves space for "...)" and the terminator
  int used = snprintf(shape.text, sizeof shape.text, "(");
  for (int i = 0; i < n; ++i) {
    char size[24];
    const int length = snprintf(size, sizeof size, i > 0 ? ", %ld" : "%ld", long(sizes[i]));
    const bool fits = used + length <= kCapacity;
    used +=
        snprintf(shape.text + used, sizeof shape.text - size_t(used), "%s", fits ? size : "...");
    if (!fits) break;
  }
  snprintf(shape.text + used, sizeof shape.text - size_t(used), ")");
  return shape;
}

}  // namespace sdx
