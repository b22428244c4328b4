// An arena for the bytes of strings, all freed when the run that owns it ends. Any thread may
// allocate: `mutex_` guards all members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/text.h"

namespace sdx {

class StringArena {
 public:
  explicit StringArena(int64_t limit_bytes = INT64_MAX) : left_(limit_bytes) {}
  StringArena(const StringArena&) = delete;
  StringArena& operator=(const StringArena&) = delete;

  // `bytes` bytes, 16-byte aligned (for arrays of Text); null when out of memory or over the limit.
  char* allocate(int64_t bytes) noexcept;

  const StringAllocator* allocator() const { return &allocator_; }

 private:
  static constexpr int64_t kAlign = 16;
  static constexpr int64_t kMinBlock = 4096, kMaxBlock = 1 << 20;  // sizes double in between

  StringAllocator allocator_{this, [](void* owner, int64_t bytes) {
                               return static_cast<StringArena*>(owner)->allocate(bytes);
                             }};
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  int64_t free_ = 0;                     // bytes after it
  int64_t block_bytes_ = kMinBlock / 2;  // of the last block
  int64_t left_;                         // bytes until the limit
};

}  // namespace sdx
