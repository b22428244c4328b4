// Offsets of lifetimes in one arena: first fit over an interference graph. Dynamic storage
// allocation is NP-hard; first fit by decreasing size, with a few other orders, reaches the lower
// bound (the peak) for nearly all models. The Python package memory/ has a simpler variant, by
// decreasing size only, and a verifier. Pure functions: equal input gives equal offsets.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sdx {

struct Lifetime {
  int64_t size;        // bytes
  int32_t start, end;  // first and last position of the execution order that needs them
};

constexpr int64_t kAlign = 64;  // a cache line, and the widest vector

constexpr int64_t align_up(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// The most bytes alive at one position, and the first such position. No layout is smaller.
struct Peak {
  int64_t bytes = 0;
  int32_t at = 0;
};
Peak peak_of_lifetimes(const std::vector<Lifetime>& lifetimes);

// The lowest offset at which `size` bytes overlap none of `used` (begin, end), which gets sorted.
int64_t first_fit_offset(std::vector<std::pair<int64_t, int64_t>>& used, int64_t size);

struct ArenaLayout {
  std::vector<int64_t> offsets;  // by lifetime
  int64_t bytes = 0;
};

// The order in which lifetimes got their offsets, and the ratio of the arena to its lower bound
// that it gave when it was found.
struct AllocationOrder {
  std::vector<int32_t> order;
  double ratio = 1;
};

// Gives each lifetime, in the allocation order, the lowest offset that no overlapping lifetime
// uses. Sizes are multiples of kAlign; `lower_bound` is the peak. The order is searched anew if
// there is none for this number of lifetimes, or if it fits these sizes worse than those it was
// found for.
ArenaLayout assign_offsets(const std::vector<Lifetime>& lifetimes, int64_t lower_bound,
                           AllocationOrder& allocation_order);

}  // namespace sdx
