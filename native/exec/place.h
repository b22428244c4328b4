// Places lives in one arena: as memory/place.py does it, at bind.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sdx {

struct Life {
  int64_t size;        // bytes
  int32_t start, end;  // first and last position that needs them
};

constexpr int64_t kAlign = 64;

constexpr int64_t align_up(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// The most bytes that are alive at one position (`at`, the first of them): no layout is smaller.
struct Peak {
  int64_t bytes = 0;
  int32_t at = 0;
};
Peak peak_of(const std::vector<Life>& lives);

// The lowest offset at which `size` bytes lie clear of all that are taken (begin, end).
int64_t lowest_gap(std::vector<std::pair<int64_t, int64_t>>& taken, int64_t size);

struct Layout {
  std::vector<int64_t> offsets;  // by life
  int64_t bytes = 0;
};

// In which order lives are placed, and how far that was above the peak when it was found.
struct Ranks {
  std::vector<int32_t> order;
  double over = 1;
};

// Each life in its turn at the lowest gap that no life of an overlapping time uses. Sizes are
// multiples of kAlign, and `least` is the peak. Ranks that are not there yet, or serve these lives
// worse than those that they were found for, are sought anew.
Layout place(const std::vector<Life>& lives, int64_t least, Ranks& ranks);

}  // namespace sdx
