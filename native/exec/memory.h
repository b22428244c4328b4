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

  // 64-byte aligned, not cleared. Throws std::bad_alloc also for more than tables of any use take:
  // sizes come from models and inputs, and a system may promise memory that it does not have.
  void* allocate(size_t bytes) {
    if (bytes > kMost) throw std::bad_alloc();
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > left_) {
      const size_t size = bytes > kBlock ? bytes : kBlock;
      if (size > kMost - taken_) throw std::bad_alloc();
      taken_ += size;
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
  static constexpr size_t kMost = size_t(1) << 30;
  std::vector<void*> blocks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  size_t taken_ = 0;
};

}  // namespace sdx
