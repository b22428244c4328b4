// Whole pages in one reserved range of addresses, for blocks that are freed and allocated in other
// sizes again and again: the activations and gradients of training steps.
//
// Freed pages stay resident and serve later requests. Neighbours coalesce, so that a request may
// use the pages of several freed blocks. What a request cannot take from freed pages is new, and
// as many freed pages elsewhere go back to the system: the resident set never exceeds the most
// that was in use simultaneously.
//
// Not thread-safe: the caller guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace sdx {

// The size in bytes of the pages that hold `bytes`; at least one.
size_t whole_pages(size_t bytes);

class PageAllocator {
 public:
  PageAllocator() = default;
  ~PageAllocator();
  PageAllocator(const PageAllocator&) = delete;
  PageAllocator& operator=(const PageAllocator&) = delete;

  // Pages of undefined contents; null if no range of addresses is left or could be reserved.
  std::byte* allocate(size_t bytes);
  // Keeps the pages for later requests; `bytes` are those of the request.
  void free(std::byte* data, size_t bytes);
  // Returns the pages to the system.
  void release(std::byte* data, size_t bytes);

  // Returns all freed pages to the system.
  void trim();
  size_t resident_free_bytes() const { return resident_free_; }

 private:
  struct Range {
    size_t bytes;
    bool is_resident;
  };
  using Ranges = std::map<uintptr_t, Range>;  // by address: free ranges; neighbours differ

  bool reserve();
  Ranges::iterator best_start(size_t bytes, size_t& absent);
  void take(uintptr_t begin, size_t bytes);
  void insert(uintptr_t begin, Range range);
  void evict(size_t bytes);

  uintptr_t begin_ = 0;
  bool failed_ = false;
  Ranges free_;
  size_t resident_free_ = 0;
};

}  // namespace sdx
