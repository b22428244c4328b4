// Places values in one arena: as memory/place.py does it, at bind.
#pragma once

#include <cstdint>
#include <vector>

namespace sdx {

struct Life {
  int64_t size;        // bytes
  int32_t start, end;  // first and last step that needs them
};

constexpr int64_t kAlign = 64;

// The offset of each life; the arena's size is returned. Largest first, each at the lowest gap that
// no life of an overlapping time uses.
int64_t place(const std::vector<Life>& lives, std::vector<int64_t>& offsets);

}  // namespace sdx
