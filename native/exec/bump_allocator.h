// A bump allocator for kernel plans: memory is handed out in pieces and freed all at once.
// Not thread-safe; never throws, since kernels are compiled without exceptions.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "os/system.h"

namespace sdx {

class BumpAllocator {
 public:
  BumpAllocator() = default;
  BumpAllocator(const BumpAllocator&) = delete;
  BumpAllocator& operator=(const BumpAllocator&) = delete;
  ~BumpAllocator() {
    for (void* block : blocks_) os::free_aligned(block);
  }

  // 64-byte aligned, not cleared. Null when out of memory, and for more than kMaxTotal: sizes come
  // from models and inputs, and an overcommitting system would promise memory that it does not
  // have. What is not small gets a block of its own and leaves the reserve to small records; if the
  // system has no such block it may use the reserve, except for the last `kReserved` bytes.
  void* allocate(size_t bytes) noexcept {
    if (bytes > kMaxTotal) return nullptr;
    bytes = bytes == 0 ? 64 : (bytes + 63) / 64 * 64;
    if (bytes > kSmall) {
      if (void* block = add_block(bytes)) return block;
      if (bytes > free_ || free_ - bytes < kReserved) return nullptr;
    } else if (bytes > free_) {
      return add_block(bytes);
    }
    void* at = next_;
    next_ += bytes;
    free_ -= bytes;
    return at;
  }

  // Makes sure that so many bytes are available to later allocations; false when out of memory.
  bool reserve(size_t bytes) noexcept {
    if (bytes <= free_) return true;
    const size_t size = bytes > kBlock ? (bytes + 63) / 64 * 64 : kBlock;
    void* block = add_block(size);
    if (block == nullptr) return false;
    next_ = static_cast<std::byte*>(block);
    free_ = size;
    return true;
  }

 private:
  void* add_block(size_t size) noexcept {
    if (size > kMaxTotal - allocated_) return nullptr;
    void* block = os::allocate_aligned(size);
    if (block == nullptr) return nullptr;
    try {
      blocks_.push_back(block);
    } catch (const std::bad_alloc&) {
      os::free_aligned(block);
      return nullptr;
    }
    allocated_ += size;
    return block;
  }

  static constexpr size_t kBlock = 65536, kSmall = 2048, kReserved = 16384;
  static constexpr size_t kMaxTotal = size_t(1) << 30;
  std::vector<void*> blocks_;
  std::byte* next_ = nullptr;
  size_t free_ = 0;
  size_t allocated_ = 0;
};

}  // namespace sdx
