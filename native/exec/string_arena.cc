#include "exec/string_arena.h"

#include <algorithm>
#include <new>

namespace sdx {

char* StringArena::allocate(int64_t bytes) noexcept {
  if (bytes < 0 || bytes > INT64_MAX / 2) return nullptr;
  bytes = (std::max<int64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  std::lock_guard lock(mutex_);
  if (bytes > free_) {
    const int64_t grown = std::min(block_bytes_ * 2, kMaxBlock);
    const int64_t size = std::max(bytes, grown);
    if (size > left_) return nullptr;
    try {
      blocks_.emplace_back(new char[size_t(size)]);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    left_ -= size;
    block_bytes_ = grown;
    next_ = blocks_.back().get();
    free_ = size;
  }
  char* at = next_;
  next_ += bytes;
  free_ -= bytes;
  return at;
}

}  // namespace sdx
