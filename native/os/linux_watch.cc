// The watch of os/system.h on Linux 6.7 and later: userfaultfd's asynchronous write protection,
// which a write removes from its page without any other effect, and PAGEMAP_SCAN, which tells where
// it did and puts it back.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "os/system.h"

namespace sdx::os {
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

int open_faults() { return int(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly)); }

// Whether the process may make the system call: some sandboxes end a process that does. Here it is
// a short-lived one, whose end sends no signal.
bool is_allowed() {
  const long child = syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) syscall(SYS_exit_group, open_faults() < 0 ? 1 : 0);
  if (child < 0) return false;
  int status = -1;
  long ended;
  do ended = waitpid(pid_t(child), &status, __WCLONE);
  while (ended < 0 && errno == EINTR);
  return ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Files {
  pid_t process = getpid();  // a child of fork() does not inherit the protection
  int faults = -1, map = -1;

  Files() {
    const int fd = is_allowed() ? open_faults() : -1;
    if (fd < 0) return;
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = kWpUnpopulated | kWpAsync;
    map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (map >= 0 && ioctl(fd, UFFDIO_API, &api) == 0)
      faults = fd;
    else
      close(fd);
  }
};

// Null if this process cannot watch pages.
const Files* files() {
  static const Files all;
  return all.faults >= 0 && all.process == getpid() ? &all : nullptr;
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

}  // namespace

bool watch_pages(uintptr_t begin, uintptr_t end) {
  const Files* const fds = files();
  if (fds == nullptr || !is_private(begin, end)) return false;
  uffdio_register request{};
  request.range.start = begin;
  request.range.len = end - begin;
  request.mode = UFFDIO_REGISTER_MODE_WP;
  if (ioctl(fds->faults, UFFDIO_REGISTER, &request) != 0) return false;
  if (take_writes(begin, end) != Writes::kUnknown) return true;
  unwatch_pages(begin, end);
  return false;
}

Writes take_writes(uintptr_t begin, uintptr_t end) {
  const Files* const fds = files();
  if (fds == nullptr) return Writes::kUnknown;
  Writes writes = Writes::kNone;
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
    const int n = ioctl(fds->map, kPagemapScan, &a);
    if (n < 0 || a.walk_end <= at) return Writes::kUnknown;
    if (n > 0) writes = Writes::kSome;
    at = a.walk_end;
  }
  return writes;
}

void unwatch_pages(uintptr_t begin, uintptr_t end) {
  const Files* const fds = files();
  if (fds == nullptr) return;
  uffdio_range range{};
  range.start = begin;
  range.len = end - begin;
  ioctl(fds->faults, UFFDIO_UNREGISTER, &range);
}

}  // namespace sdx::os
