// Shapes in error messages: (2, 3).
#pragma once

#include <cstdint>

namespace sdx {

// Text in a fixed buffer: kernels, which must not allocate, pass it to Status::fail.
struct ShapeText {
  char text[64];
};

// `n` sizes in parentheses; the first that does not fit and all after it become "...".
ShapeText format_shape(const int64_t* sizes, int n);

}  // namespace sdx
