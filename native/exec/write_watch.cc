#include "exec/write_watch.h"

#ifdef __linux__
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "exec/fork_mutex.h"
#endif

namespace sdx {

WriteWatch::Pages WriteWatch::pages_in(const unsigned char* data, int64_t bytes) {
#ifdef __linux__
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const auto begin = int64_t(reinterpret_cast<uintptr_t>(data));
  const int64_t skipped = (page - begin % page) % page;
  const int64_t whole = (bytes - skipped) / page * page;
  if (whole > 0) return {data + skipped, whole};
#endif
  return {data, 0};
}

#ifdef __linux__
namespace {

// Of Linux 6.7; the headers that this is compiled with may be older.
constexpr uint64_t kWpUnpopulated = 1 << 13;
constexpr uint64_t kWpAsync = 1 << 15;
constexpr int kUserModeOnly = 1;  // what processes without privileges may open
constexpr uint64_t kScanWpMatching = 1 << 0;
constexpr uint64_t kScanCheckWpAsync = 1 << 1;  // fails if a page is not protected by such a watch
constexpr uint64_t kPageIsWritten = 1 << 1;

struct PageRegion {
  uint64_t start, end, categories;
};

struct ScanArguments {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArguments);

// All watches of the process: two of them must not ask for the same pages, as a question is also
// the new beginning of the watch.
struct Watches {
  ForkMutex mutex;
  std::map<uintptr_t, std::weak_ptr<WriteWatch>> by_begin;
  std::map<uintptr_t, uintptr_t> ends;
  pid_t process = -1;  // a child of fork() does not inherit the protection
  int fault_fd = -1, map_fd = -1;
};

Watches& watches() {
  static auto* const all = new Watches;  // outlives the objects of other libraries
  return *all;
}

bool open_once(Watches& all) {
  if (all.process >= 0) return all.process == getpid() && all.fault_fd >= 0;
  all.process = getpid();
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly);
  if (fd < 0) return false;
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kWpUnpopulated | kWpAsync;
  const int map_fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (ioctl(int(fd), UFFDIO_API, &api) != 0 || map_fd < 0) {
    close(int(fd));
    if (map_fd >= 0) close(map_fd);
    return false;
  }
  all.fault_fd = int(fd);
  all.map_fd = map_fd;
  return true;
}

// Other mappings of the same memory, which have protections of their own, exist only of files and
// of shared memory.
bool is_private(uintptr_t begin, uintptr_t end) {
  FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return false;
  char line[512], access[5];
  uintptr_t from, to, at = begin;
  unsigned long inode;
  bool ok = true;
  while (ok && at < end && std::fgets(line, sizeof line, maps) != nullptr) {
    const int n = std::sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &from, &to, access, &inode);
    if (n != 4 || to <= at) continue;
    ok = from <= at && access[3] == 'p' && inode == 0;
    at = to;
  }
  std::fclose(maps);
  return ok && at >= end;
}

bool overlaps(const Watches& all, uintptr_t begin, uintptr_t end) {
  const auto next = all.ends.lower_bound(begin);
  if (next != all.ends.end() && next->first < end) return true;
  return next != all.ends.begin() && std::prev(next)->second > begin;
}

// Protects all pages that were written; -1 if a page is not watched, else whether there were any.
int scan(const Watches& all, uintptr_t begin, uintptr_t end) {
  bool is_written = false;
  for (uintptr_t at = begin; at < end;) {
    PageRegion regions[16];
    ScanArguments a{};
    a.size = sizeof a;
    a.flags = kScanWpMatching | kScanCheckWpAsync;
    a.start = at;
    a.end = end;
    a.vec = reinterpret_cast<uintptr_t>(regions);
    a.vec_len = 16;
    a.category_mask = a.return_mask = kPageIsWritten;
    const int n = ioctl(all.map_fd, kPagemapScan, &a);
    if (n < 0 || a.walk_end <= at) return -1;
    is_written |= n > 0;
    at = a.walk_end;
  }
  return is_written ? 1 : 0;
}

void unregister(const Watches& all, uintptr_t begin, uintptr_t end) {
  uffdio_range range{};
  range.start = begin;
  range.len = end - begin;
  ioctl(all.fault_fd, UFFDIO_UNREGISTER, &range);
}

}  // namespace

std::shared_ptr<WriteWatch> WriteWatch::of(const void* data, int64_t bytes) {
  const Pages pages = pages_in(static_cast<const unsigned char*>(data), bytes);
  if (pages.bytes == 0) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(pages.begin);
  const uintptr_t end = begin + uintptr_t(pages.bytes);
  Watches& all = watches();
  const std::lock_guard lock(all.mutex);
  if (!open_once(all)) return nullptr;
  if (const auto found = all.by_begin.find(begin); found != all.by_begin.end())
    if (auto watch = found->second.lock()) return watch->end_ == end ? watch : nullptr;
  if (overlaps(all, begin, end) || !is_private(begin, end)) return nullptr;
  uffdio_register request{};
  request.range.start = begin;
  request.range.len = end - begin;
  request.mode = UFFDIO_REGISTER_MODE_WP;
  if (ioctl(all.fault_fd, UFFDIO_REGISTER, &request) != 0) return nullptr;
  if (scan(all, begin, end) < 0) {
    unregister(all, begin, end);
    return nullptr;
  }
  std::shared_ptr<WriteWatch> made(new WriteWatch(begin, end));
  all.by_begin[begin] = made;
  all.ends[begin] = end;
  return made;
}

WriteWatch::~WriteWatch() {
  Watches& all = watches();
  const std::lock_guard lock(all.mutex);
  all.by_begin.erase(begin_);
  all.ends.erase(begin_);
  if (all.process == getpid()) unregister(all, begin_, end_);
}

uint64_t WriteWatch::generation() {
  Watches& all = watches();
  const std::lock_guard lock(all.mutex);
  if (all.process != getpid()) return 0;
  const int written = scan(all, begin_, end_);
  if (written < 0) return 0;
  generation_ += generation_ == 0 || written > 0;
  return generation_;
}

#else

std::shared_ptr<WriteWatch> WriteWatch::of(const void*, int64_t) { return nullptr; }
WriteWatch::~WriteWatch() = default;
uint64_t WriteWatch::generation() { return 0; }

#endif

}  // namespace sdx
