#include "exec/buffer_lifetimes.h"

#include <algorithm>
#include <numeric>

namespace sdx {

BufferMap::BufferMap(const MemoryNeeds& needs, const std::vector<char>& is_elided)
    : buffer(needs.bytes.size()), offset(needs.bytes.size(), 0) {
  std::iota(buffer.begin(), buffer.end(), 0);
  for (size_t i = 0; i < needs.concats.size(); ++i) {
    if (!is_elided[i]) continue;
    for (const ConcatInput& input : needs.concats[i]) {
      // A value that two Concats read is written into the first; the second copies it.
      if (buffer[size_t(input.value)] != input.value) continue;
      buffer[size_t(input.value)] = input.output;
      offset[size_t(input.value)] = input.offset;
    }
  }
  // A Concat output may itself be an input of the next Concat: follow to the outermost buffer.
  for (size_t i = 0; i < buffer.size(); ++i) {
    while (buffer[size_t(buffer[i])] != buffer[i]) {
      offset[i] += offset[size_t(buffer[i])];
      buffer[i] = buffer[size_t(buffer[i])];
    }
  }
}

bool BufferMap::allows(const InPlaceStep& pair, const std::vector<int32_t>& touched) const {
  if (offset[size_t(pair.from)] != offset[size_t(pair.to)]) return false;
  return std::all_of(touched.begin(), touched.end(), [&](int32_t value) {
    const int32_t in = buffer[size_t(value)];
    const bool is_there = in == buffer[size_t(pair.from)] || in == buffer[size_t(pair.to)];
    return value == pair.from || value == pair.to || !is_there;
  });
}

BufferLifetimes::BufferLifetimes(const Dependencies& dependencies, const MemoryNeeds& needs,
                                 const BufferMap& buffers, const std::vector<int32_t>& order,
                                 const ParallelGroups& groups)
    : owner(needs.bytes.size()),
      position(order.size()),
      until_(order.size()),
      first_(needs.bytes.size(), -1),
      last_(needs.bytes.size(), -1) {
  std::iota(owner.begin(), owner.end(), 0);
  for (size_t at = 0; at < order.size(); ++at) {
    position[size_t(order[at])] = groups.begin[at];
    until_[size_t(order[at])] = groups.end[at];
    for (const int32_t value : dependencies.touches[size_t(order[at])]) {
      const auto buffer = size_t(buffers.buffer[size_t(value)]);
      if (first_[buffer] < 0) first_[buffer] = groups.begin[at];
      last_[buffer] = groups.end[at];
    }
  }
  apply_in_place(dependencies, needs, buffers);
  collect(needs);
  peak = peak_of_lifetimes(lifetimes);
}

// Joins buffers where a step is the last to touch one and the first to touch the other, of the same
// size; in execution order, so that chains of in-place steps get one owner.
void BufferLifetimes::apply_in_place(const Dependencies& dependencies, const MemoryNeeds& needs,
                                     const BufferMap& buffers) {
  std::vector<InPlaceStep> pairs = needs.in_place;
  std::stable_sort(pairs.begin(), pairs.end(), [&](const InPlaceStep& a, const InPlaceStep& b) {
    return position[size_t(a.step)] < position[size_t(b.step)];
  });
  std::vector<char> is_overwritten(owner.size(), 0), overwrites(owner.size(), 0);
  for (const InPlaceStep& pair : pairs) {
    const auto from = size_t(buffers.buffer[size_t(pair.from)]);
    const auto to = size_t(buffers.buffer[size_t(pair.to)]);
    const int32_t at = position[size_t(pair.step)];
    if (until_[size_t(pair.step)] != at) continue;  // others of its parallel group may read it
    if (from == to || last_[from] != at || first_[to] != at || is_overwritten[from] ||
        overwrites[to] || needs.bytes[from] != needs.bytes[to] ||
        !buffers.allows(pair, dependencies.touches[size_t(pair.step)]))
      continue;
    is_overwritten[from] = overwrites[to] = 1;
    owner[to] = owner[from];
  }
}

// Lists the lifetimes: an owner lives until the last of its buffers is dead.
void BufferLifetimes::collect(const MemoryNeeds& needs) {
  std::vector<int32_t> end = last_;
  for (size_t i = 0; i < owner.size(); ++i)
    if (first_[i] >= 0) end[size_t(owner[i])] = std::max(end[size_t(owner[i])], last_[i]);
  for (size_t i = 0; i < owner.size(); ++i) {
    if (first_[i] < 0 || owner[i] != int32_t(i)) continue;
    lifetimes.push_back({needs.bytes[i], first_[i], end[i]});
    allocation.push_back(int32_t(i));
  }
  for (size_t i = 0; i < needs.scratch.size(); ++i) {
    if (needs.scratch[i] == 0) continue;
    lifetimes.push_back({needs.scratch[i], position[i], until_[i]});
    allocation.push_back(int32_t(owner.size() + i));
  }
}

void BufferLifetimes::remove(const std::vector<size_t>& indices) {
  std::vector<char> is_removed(lifetimes.size(), 0);
  for (const size_t i : indices) is_removed[i] = 1;
  size_t n = 0;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    if (is_removed[i]) continue;
    lifetimes[n] = lifetimes[i];
    allocation[n++] = allocation[i];
  }
  lifetimes.resize(n);
  allocation.resize(n);
  peak = peak_of_lifetimes(lifetimes);
}

}  // namespace sdx
