// os/system.h on Linux, beside os/posix.cc.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "os/system.h"

namespace sdx::os {

// ThreadSanitizer does not track mremap, and reports an address that is mapped again as shared by
// two threads: under it, the pages are copied.
#ifdef __SANITIZE_THREAD__
void* resize_pages(void* pages, size_t bytes, size_t new_bytes) {
  void* made = map_pages(new_bytes);
  if (made == nullptr) return nullptr;
  std::memcpy(made, pages, std::min(bytes, new_bytes));
  unmap_pages(pages, bytes);
  return made;
}
#else
void* resize_pages(void* pages, size_t bytes, size_t new_bytes) {
  void* made = mremap(pages, bytes, new_bytes, MREMAP_MAYMOVE);
  return made == MAP_FAILED ? nullptr : made;
}
#endif

void discard_pages(void* pages, size_t bytes) { madvise(pages, bytes, MADV_DONTNEED); }

void wait_while(std::atomic<int>& word, int seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void wake_one(std::atomic<int>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

int affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// The quota of the control group: version 2, else version 1.
double quota_cpus() {
  double quota = -1, period = 0;
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    if (std::fscanf(file, "%lf %lf", &quota, &period) != 2) quota = -1;
    std::fclose(file);
  } else if (FILE* v1 = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r")) {
    if (std::fscanf(v1, "%lf", &quota) != 1) quota = -1;
    std::fclose(v1);
    FILE* other = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
    if (other != nullptr) {
      if (std::fscanf(other, "%lf", &period) != 1) quota = -1;
      std::fclose(other);
    }
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

void bind_thread(std::thread::native_handle_type thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace sdx::os
