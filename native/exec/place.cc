#include "exec/place.h"

#include <algorithm>
#include <numeric>

namespace sdx {

int64_t place(const std::vector<Life>& lives, std::vector<int64_t>& offsets) {
  std::vector<int32_t> order(lives.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return lives[size_t(a)].size > lives[size_t(b)].size;
  });
  offsets.assign(lives.size(), 0);
  std::vector<int32_t> placed;  // by offset
  placed.reserve(lives.size());
  int64_t total = 0;
  for (const int32_t index : order) {
    const Life& life = lives[size_t(index)];
    int64_t offset = 0;
    for (const int32_t other : placed) {
      const Life& there = lives[size_t(other)];
      const int64_t begin = offsets[size_t(other)];
      if (there.end < life.start || life.end < there.start || begin + there.size <= offset)
        continue;
      if (begin - offset >= life.size) break;
      offset = (begin + there.size + kAlign - 1) / kAlign * kAlign;
    }
    offsets[size_t(index)] = offset;
    const auto at = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](int64_t value, int32_t other) { return value < offsets[size_t(other)]; });
    placed.insert(at, index);
    total = std::max(total, offset + life.size);
  }
  return total;
}

}  // namespace sdx
