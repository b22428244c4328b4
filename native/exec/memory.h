// Memory of plans: blocks that are handed out in pieces and freed together.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace sdx {

class Bump {
 public:
  Bump() = default;
  Bump(const Bump&) = delete;
  Bump& operator=(const Bump&) = delete;
  ~Bump() {
    for (void* block : blocks_) std::free(block);
  }

  // 64-byte aligned, not cleared.
  void* allocate(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > left_) {
      const size_t size = bytes > kBlock ? bytes : kBlock;
      void* block = std::aligned_alloc(64, size);
      if (block == nullptr) throw std::bad_alloc();
      blocks_.push_back(block);
      next_ = static_cast<std::byte*>(block);
      left_ = size;
    }
    void* made = next_;
    next_ += bytes;
    left_ -= bytes;
    return made;
  }

 private:
  static constexpr size_t kBlock = 16384;
  std::vector<void*> blocks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace sdx
