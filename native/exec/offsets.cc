#include "exec/offsets.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sdx {
namespace {

constexpr int64_t kMaxPairs = 1 << 20;  // of interfering lifetimes; beyond, no graph is built
constexpr int kMaxTries = 24;           // layouts per initial order
constexpr double kMaxWorse = 1.02;      // an order is reused up to this much above its first ratio

// The interference graph: for each lifetime, the others that overlap it in time, as in Chaitin's
// register allocation. Built by a sweep over starts.
class Interference {
 public:
  explicit Interference(const std::vector<Lifetime>& lifetimes) : first_(lifetimes.size() + 1, 0) {
    std::vector<int32_t> by_start(lifetimes.size()), alive;
    std::iota(by_start.begin(), by_start.end(), 0);
    std::stable_sort(by_start.begin(), by_start.end(), [&](int32_t a, int32_t b) {
      return lifetimes[size_t(a)].start < lifetimes[size_t(b)].start;
    });
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (const int32_t i : by_start) {
      std::erase_if(
          alive, [&](int32_t j) { return lifetimes[size_t(j)].end < lifetimes[size_t(i)].start; });
      for (const int32_t j : alive) pairs.emplace_back(i, j);
      if (int64_t(pairs.size()) > kMaxPairs) return;
      alive.push_back(i);
    }
    list(pairs);
  }

  bool is_complete() const { return complete_; }
  const int32_t* begin(int32_t lifetime) const { return all_.data() + first_[size_t(lifetime)]; }
  const int32_t* end(int32_t lifetime) const { return all_.data() + first_[size_t(lifetime) + 1]; }

 private:
  void list(const std::vector<std::pair<int32_t, int32_t>>& pairs) {
    for (const auto& [a, b] : pairs) ++first_[size_t(a) + 1], ++first_[size_t(b) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    all_.resize(pairs.size() * 2);
    std::vector<int64_t> next(first_.begin(), first_.end() - 1);
    for (const auto& [a, b] : pairs) {
      all_[size_t(next[size_t(a)]++)] = b;
      all_[size_t(next[size_t(b)]++)] = a;
    }
    complete_ = true;
  }

  std::vector<int64_t> first_;
  std::vector<int32_t> all_;
  bool complete_ = false;
};

using ByteRange = std::pair<int64_t, int64_t>;  // begin, end

ArenaLayout first_fit_in_order(const std::vector<Lifetime>& lifetimes,
                               const Interference& interference,
                               const std::vector<int32_t>& allocation_order) {
  ArenaLayout layout{std::vector<int64_t>(lifetimes.size(), -1), 0};
  std::vector<ByteRange> used;
  for (const int32_t i : allocation_order) {
    used.clear();
    for (const int32_t* j = interference.begin(i); j != interference.end(i); ++j)
      if (const int64_t at = layout.offsets[size_t(*j)]; at >= 0)
        used.emplace_back(at, at + lifetimes[size_t(*j)].size);
    const int64_t size = lifetimes[size_t(i)].size, offset = first_fit_offset(used, size);
    layout.offsets[size_t(i)] = offset;
    layout.bytes = std::max(layout.bytes, offset + size);
  }
  return layout;
}

std::vector<int32_t> sorted_by(size_t n, auto&& is_before) {
  std::vector<int32_t> allocation_order(n);
  std::iota(allocation_order.begin(), allocation_order.end(), 0);
  std::stable_sort(allocation_order.begin(), allocation_order.end(), is_before);
  return allocation_order;
}

std::vector<int32_t> by_size(const std::vector<Lifetime>& lifetimes) {
  return sorted_by(lifetimes.size(), [&](int32_t a, int32_t b) {
    const Lifetime &x = lifetimes[size_t(a)], &y = lifetimes[size_t(b)];
    return x.size != y.size ? x.size > y.size : x.start < y.start;
  });
}

std::vector<int32_t> by_length(const std::vector<Lifetime>& lifetimes) {
  return sorted_by(lifetimes.size(), [&](int32_t a, int32_t b) {
    const Lifetime &x = lifetimes[size_t(a)], &y = lifetimes[size_t(b)];
    return x.end - x.start > y.end - y.start;
  });
}

std::vector<int32_t> by_start(const std::vector<Lifetime>& lifetimes) {
  return sorted_by(lifetimes.size(), [&](int32_t a, int32_t b) {
    const Lifetime &x = lifetimes[size_t(a)], &y = lifetimes[size_t(b)];
    return x.start != y.start ? x.start < y.start : x.size > y.size;
  });
}

// Moves the lifetimes that reach the top of a layout to the front: in the next try they get the low
// offsets, and others have to go around them.
void prioritize_top(const std::vector<Lifetime>& lifetimes, const ArenaLayout& layout,
                    std::vector<int32_t>& allocation_order) {
  std::stable_partition(allocation_order.begin(), allocation_order.end(), [&](int32_t i) {
    return layout.offsets[size_t(i)] + lifetimes[size_t(i)].size == layout.bytes;
  });
}

// Without an interference graph: by start, keeping only the lifetimes alive at the moment.
ArenaLayout first_fit_by_start(const std::vector<Lifetime>& lifetimes) {
  ArenaLayout layout{std::vector<int64_t>(lifetimes.size(), 0), 0};
  std::vector<int32_t> alive;
  std::vector<ByteRange> used;
  for (const int32_t i : by_start(lifetimes)) {
    const Lifetime& lifetime = lifetimes[size_t(i)];
    std::erase_if(alive, [&](int32_t j) { return lifetimes[size_t(j)].end < lifetime.start; });
    used.clear();
    for (const int32_t j : alive)
      used.emplace_back(layout.offsets[size_t(j)],
                        layout.offsets[size_t(j)] + lifetimes[size_t(j)].size);
    layout.offsets[size_t(i)] = first_fit_offset(used, lifetime.size);
    layout.bytes = std::max(layout.bytes, layout.offsets[size_t(i)] + lifetime.size);
    alive.push_back(i);
  }
  return layout;
}

}  // namespace

int64_t first_fit_offset(std::vector<ByteRange>& used, int64_t size) {
  std::sort(used.begin(), used.end());
  int64_t offset = 0;
  for (const auto& [begin, end] : used) {
    if (begin - offset >= size) break;
    offset = std::max(offset, end);
  }
  return offset;
}

Peak peak_of_lifetimes(const std::vector<Lifetime>& lifetimes) {
  // A difference array: bytes are added at starts and removed after ends.
  int32_t last = -1;
  for (const Lifetime& lifetime : lifetimes) last = std::max(last, lifetime.end);
  std::vector<int64_t> change(size_t(last + 2), 0);
  for (const Lifetime& lifetime : lifetimes) {
    change[size_t(lifetime.start)] += lifetime.size;
    change[size_t(lifetime.end) + 1] -= lifetime.size;
  }
  Peak peak;
  int64_t now = 0;
  for (int32_t i = 0; i <= last; ++i) {
    now += change[size_t(i)];
    if (now > peak.bytes) peak = {now, i};
  }
  return peak;
}

ArenaLayout assign_offsets(const std::vector<Lifetime>& lifetimes, int64_t lower_bound,
                           AllocationOrder& allocation_order) {
  const Interference interference(lifetimes);
  if (!interference.is_complete()) return first_fit_by_start(lifetimes);
  if (allocation_order.order.size() == lifetimes.size()) {
    ArenaLayout reused = first_fit_in_order(lifetimes, interference, allocation_order.order);
    if (double(reused.bytes) <= double(lower_bound) * allocation_order.ratio * kMaxWorse)
      return reused;
  }
  // Stops at the lower bound. By decreasing size is best for most; by length of life and by start
  // win where long-lived values fragment the arena.
  ArenaLayout best;
  for (auto* order : {by_size, by_length, by_start}) {
    if (!best.offsets.empty() && best.bytes <= lower_bound) break;
    std::vector<int32_t> next = order(lifetimes);
    for (int i = 0; i < kMaxTries && (best.offsets.empty() || best.bytes > lower_bound); ++i) {
      ArenaLayout made = first_fit_in_order(lifetimes, interference, next);
      const bool is_better = best.offsets.empty() || made.bytes < best.bytes;
      if (is_better) allocation_order.order = next;
      prioritize_top(lifetimes, made, next);
      if (is_better) best = std::move(made);
    }
  }
  allocation_order.ratio = lower_bound > 0 ? double(best.bytes) / double(lower_bound) : 1;
  return best;
}

}  // namespace sdx
