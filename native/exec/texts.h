// Room for the bytes of strings, all of which are there until the run that they belong to ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/text.h"

namespace sdx {

class Texts {
 public:
  explicit Texts(int64_t limit_bytes = INT64_MAX) : left_(limit_bytes) {}
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  // So many bytes, 16-byte aligned; null where there is no memory, or the limit is reached. Any
  // thread may ask.
  char* allocate(int64_t bytes) noexcept;

  const StringAllocator* room() const { return &room_; }

 private:
  static constexpr int64_t kAlign = 16;
  static constexpr int64_t kLeast = 4096, kMost = 1 << 20;  // bytes of a block

  StringAllocator room_{
      this, [](void* owner, int64_t bytes) { return static_cast<Texts*>(owner)->allocate(bytes); }};
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  int64_t free_ = 0;            // bytes behind it
  int64_t block_ = kLeast / 2;  // bytes of the last block
  int64_t left_;                // bytes that may be taken yet
};

}  // namespace sdx
