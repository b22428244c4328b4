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

  // 64-byte aligned, not cleared. Null where there is no memory, and for more than tables of any
  // use take: sizes come from models and inputs, and a system may promise memory that it does not
  // have. What is not small gets a block of its own, so that it leaves the reserve to records;
  // without memory for one it may come out of the reserve, but for the last `kKept` of it.
  void* allocate(size_t bytes) noexcept {
    if (bytes > kMost) return nullptr;
    bytes = bytes == 0 ? 64 : (bytes + 63) / 64 * 64;
    if (bytes > kSmall) {
      if (void* block = add_block(bytes)) return block;
      if (bytes > left_ || left_ - bytes < kKept) return nullptr;
    } else if (bytes > left_) {
      return add_block(bytes);
    }
    void* made = next_;
    next_ += bytes;
    left_ -= bytes;
    return made;
  }

  // Has so many bytes ready for allocations to come; false where there is no memory.
  bool reserve(size_t bytes) noexcept {
    if (bytes <= left_) return true;
    const size_t size = bytes > kBlock ? (bytes + 63) / 64 * 64 : kBlock;
    void* block = add_block(size);
    if (block == nullptr) return false;
    next_ = static_cast<std::byte*>(block);
    left_ = size;
    return true;
  }

 private:
  void* add_block(size_t size) noexcept {
    if (size > kMost - taken_) return nullptr;
    void* block = std::aligned_alloc(64, size);
    if (block == nullptr) return nullptr;
    try {
      blocks_.push_back(block);
    } catch (const std::bad_alloc&) {
      std::free(block);
      return nullptr;
    }
    taken_ += size;
    return block;
  }

  static constexpr size_t kBlock = 65536, kSmall = 2048, kKept = 16384;
  static constexpr size_t kMost = size_t(1) << 30;
  std::vector<void*> blocks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  size_t taken_ = 0;
};

}  // namespace sdx
