// Elements of string tensors: where their UTF-8 bytes lie. All zeros is the empty string.
#pragma once

#include <cstdint>

namespace sdx {

struct Text {
  const char* data;
  int64_t size;  // bytes
};

// Where steps that make strings get room for their bytes, which are there until the run ends.
struct TextRoom {
  void* owner = nullptr;
  char* (*allocate)(void* owner, int64_t bytes) = nullptr;  // null where there is no memory
};

}  // namespace sdx
