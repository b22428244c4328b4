// What Linux and macOS share of os/system.h.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "os/system.h"

namespace sdx::os {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE, kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;

void* mapped(size_t bytes, int flags) {
  void* pages = mmap(nullptr, bytes, kReadWrite, flags, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

}  // namespace

size_t page_bytes() {
  static const auto bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* map_pages(size_t bytes) { return mapped(bytes, kAnonymous); }
void* reserve_pages(size_t bytes) { return mapped(bytes, kAnonymous | MAP_NORESERVE); }
void unmap_pages(void* pages, size_t bytes) { munmap(pages, bytes); }

bool is_mapped(uintptr_t begin, uintptr_t end) {
  // Writes nothing, and fails where a page in the range belongs to no mapping.
  return msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) == 0;
}

void* allocate_aligned(size_t bytes) { return std::aligned_alloc(64, bytes); }
void free_aligned(void* memory) { std::free(memory); }

void sleep_forever() {
  for (;;) pause();
}

void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
  pthread_atfork(before, in_parent, in_child);
}

}  // namespace sdx::os
