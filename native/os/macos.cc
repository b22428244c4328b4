// os/system.h on macOS, beside os/posix.cc.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "os/system.h"

namespace sdx::os {

void* resize_pages(void* pages, size_t bytes, size_t new_bytes) {
  void* made = map_pages(new_bytes);
  if (made == nullptr) return nullptr;
  std::memcpy(made, pages, std::min(bytes, new_bytes));
  unmap_pages(pages, bytes);
  return made;
}

void discard_pages(void* pages, size_t bytes) { madvise(pages, bytes, MADV_FREE_REUSABLE); }

// The standard library sleeps in the kernel there.
void wait_while(std::atomic<int>& word, int seen) { word.wait(seen); }
void wake_one(std::atomic<int>& word) { word.notify_one(); }

// There are no affinities, and no limits of CPU time.
int affinity_cpus() { return 0; }
double quota_cpus() { return 0; }
void bind_thread(std::thread::native_handle_type, const std::vector<int>&) {}

// Not supported: page protection here would interrupt the writers.
bool watch_pages(uintptr_t, uintptr_t) { return false; }
void unwatch_pages(uintptr_t, uintptr_t) {}
Writes take_writes(uintptr_t, uintptr_t) { return Writes::kUnknown; }

}  // namespace sdx::os
