#include "exec/page_allocator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "os/system.h"

namespace sdx {
namespace {

constexpr size_t kReserved = size_t(1) << 40;  // 1 TiB of address space, not backed by memory

}  // namespace

size_t whole_pages(size_t bytes) {
  const size_t page = os::page_bytes();
  return (std::max(bytes, size_t(1)) + page - 1) / page * page;
}

PageAllocator::~PageAllocator() {
  if (begin_ != 0) os::unmap_pages(reinterpret_cast<void*>(begin_), kReserved);
}

bool PageAllocator::reserve() {
  if (begin_ != 0 || failed_) return begin_ != 0;
  // Systems that account for reserved addresses (overcommit mode 2, RLIMIT_AS) refuse.
  void* made = os::reserve_pages(kReserved);
  failed_ = made == nullptr;
  if (failed_) return false;
  begin_ = reinterpret_cast<uintptr_t>(made);
  free_.emplace(begin_, Range{kReserved, false});
  return true;
}

// Best fit: the free range at whose beginning a request needs the fewest new pages (`absent`
// bytes), together with the ranges that follow without a gap; of equal ones the one that leaves the
// least. A linear scan, as in `evict`: neighbours coalesce, and the training of a residual network
// with changing batch sizes has at most 4 free ranges at a time.
PageAllocator::Ranges::iterator PageAllocator::best_start(size_t bytes, size_t& absent) {
  auto best = free_.end();
  size_t best_length = 0;
  for (auto start = free_.begin(); start != free_.end(); ++start) {
    size_t length = 0, missing = 0;
    for (auto range = start; length < bytes; ++range) {
      if (range == free_.end() || range->first != start->first + length) break;
      if (!range->second.is_resident) missing += std::min(range->second.bytes, bytes - length);
      length += range->second.bytes;
    }
    if (length < bytes) continue;
    if (best != free_.end() && std::pair(missing, length) >= std::pair(absent, best_length))
      continue;
    best = start, absent = missing, best_length = length;
  }
  return best;
}

// Removes [begin, begin + bytes) from the free ranges.
void PageAllocator::take(uintptr_t begin, size_t bytes) {
  auto range = free_.find(begin);
  while (bytes > 0) {
    const Range whole = range->second;
    const size_t used = std::min(whole.bytes, bytes);
    if (whole.is_resident) resident_free_ -= used;
    range = free_.erase(range);
    if (used < whole.bytes)
      free_.emplace_hint(range, begin + used, Range{whole.bytes - used, whole.is_resident});
    begin += used;
    bytes -= used;
  }
}

// Adds a free range, joined with neighbours of the same kind.
void PageAllocator::insert(uintptr_t begin, Range range) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + range.bytes &&
      next->second.is_resident == range.is_resident) {
    range.bytes += next->second.bytes;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto& [before, joined] = *std::prev(next);
    if (before + joined.bytes == begin && joined.is_resident == range.is_resident) {
      joined.bytes += range.bytes;
      return;
    }
  }
  free_.emplace_hint(next, begin, range);
}

// Returns freed pages to the system, the shortest ranges first.
void PageAllocator::evict(size_t bytes) {
  while (bytes > 0 && resident_free_ > 0) {
    auto shortest = free_.end();
    for (auto range = free_.begin(); range != free_.end(); ++range)
      if (range->second.is_resident &&
          (shortest == free_.end() || range->second.bytes < shortest->second.bytes))
        shortest = range;
    const uintptr_t begin = shortest->first;
    const size_t gone = std::min(shortest->second.bytes, bytes);
    os::discard_pages(reinterpret_cast<void*>(begin), gone);
    take(begin, gone);
    insert(begin, {gone, false});
    bytes -= gone;
  }
}

std::byte* PageAllocator::allocate(size_t bytes) {
  if (!reserve()) return nullptr;
  bytes = whole_pages(bytes);
  size_t absent = 0;
  const auto start = best_start(bytes, absent);
  if (start == free_.end()) return nullptr;
  const uintptr_t begin = start->first;
  take(begin, bytes);
  evict(absent);
  return reinterpret_cast<std::byte*>(begin);
}

void PageAllocator::free(std::byte* data, size_t bytes) {
  bytes = whole_pages(bytes);
  resident_free_ += bytes;
  insert(reinterpret_cast<uintptr_t>(data), {bytes, true});
}

void PageAllocator::release(std::byte* data, size_t bytes) {
  bytes = whole_pages(bytes);
  os::discard_pages(data, bytes);
  insert(reinterpret_cast<uintptr_t>(data), {bytes, false});
}

void PageAllocator::trim() { evict(resident_free_); }

}  // namespace sdx
