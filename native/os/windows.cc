// os/system.h on Windows.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <malloc.h>
#include <windows.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "os/system.h"

namespace sdx::os {

size_t page_bytes() {
  static const size_t bytes = [] {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return size_t(info.dwPageSize);
  }();
  return bytes;
}

void* map_pages(size_t bytes) {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void unmap_pages(void* pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }

void* resize_pages(void* pages, size_t bytes, size_t new_bytes) {
  void* made = map_pages(new_bytes);
  if (made == nullptr) return nullptr;
  std::memcpy(made, pages, std::min(bytes, new_bytes));
  unmap_pages(pages, bytes);
  return made;
}

// Pages are committed before they are written.
void* reserve_pages(size_t) { return nullptr; }

void discard_pages(void* pages, size_t bytes) {
  VirtualAlloc(pages, bytes, MEM_RESET, PAGE_READWRITE);
}

bool is_mapped(uintptr_t begin, uintptr_t end) {
  while (begin < end) {
    MEMORY_BASIC_INFORMATION region;
    if (VirtualQuery(reinterpret_cast<void*>(begin), &region, sizeof region) == 0) return false;
    if (region.State != MEM_COMMIT) return false;
    begin = reinterpret_cast<uintptr_t>(region.BaseAddress) + region.RegionSize;
  }
  return true;
}

void* allocate_aligned(size_t bytes) { return _aligned_malloc(bytes, 64); }
void free_aligned(void* memory) { _aligned_free(memory); }

// The standard library sleeps in the kernel there.
void wait_while(std::atomic<int>& word, int seen) { word.wait(seen); }
void wake_one(std::atomic<int>& word) { word.notify_one(); }

int affinity_cpus() {
  DWORD_PTR mask = 0, of_system = 0;
  const bool is_known = GetProcessAffinityMask(GetCurrentProcess(), &mask, &of_system) != 0;
  return is_known ? std::popcount(uint64_t(mask)) : 0;
}

// Job objects can limit the CPU time; that is not looked up. Workers are not bound: their handles
// end when they are detached.
double quota_cpus() { return 0; }
void bind_thread(std::thread::native_handle_type, const std::vector<int>&) {}

void sleep_forever() {
  for (;;) Sleep(INFINITE);
}

void at_fork(void (*)(), void (*)(), void (*)()) {}

// Not supported: page protection here would interrupt the writers.
bool watch_pages(uintptr_t, uintptr_t) { return false; }
void unwatch_pages(uintptr_t, uintptr_t) {}
Writes take_writes(uintptr_t, uintptr_t) { return Writes::kUnknown; }

}  // namespace sdx::os
