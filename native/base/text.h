// Elements of string tensors: 16 bytes that point to UTF-8 stored elsewhere: in the model, in a
// copy of the fed array, or in memory that a step allocates for the run (exec/string_arena.h).
// Views, copies and arenas treat them like any other fixed-size element, and substrings copy no
// bytes.
#pragma once

#include <cstdint>

namespace sdx {

// All zeros is the empty string. Not null-terminated.
struct Text {
  const char* data;
  int64_t size;  // bytes
};

// Allocates the bytes of strings that steps produce; they are freed when the run ends. A plain
// function pointer, since kernels are compiled without exceptions and share no inline std code.
struct StringAllocator {
  void* owner = nullptr;
  char* (*allocate)(void* owner, int64_t bytes) = nullptr;  // null when out of memory
};

}  // namespace sdx
