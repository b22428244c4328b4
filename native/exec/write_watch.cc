#include "exec/write_watch.h"

#include <iterator>
#include <map>
#include <mutex>

#include "exec/fork_mutex.h"
#include "os/system.h"

namespace sdx {
namespace {

// All watches of the process: two of them must not ask for the same pages, as a question is also
// the new beginning of the watch.
struct Watches {
  ForkMutex mutex;
  std::map<uintptr_t, std::weak_ptr<WriteWatch>> by_begin;
  std::map<uintptr_t, uintptr_t> ends;
};

Watches& watches() {
  static auto* const all = new Watches;  // outlives the objects of other libraries
  return *all;
}

bool overlaps(const Watches& all, uintptr_t begin, uintptr_t end) {
  const auto next = all.ends.lower_bound(begin);
  if (next != all.ends.end() && next->first < end) return true;
  return next != all.ends.begin() && std::prev(next)->second > begin;
}

}  // namespace

WriteWatch::Pages WriteWatch::pages_in(const unsigned char* data, int64_t bytes) {
  const auto page = int64_t(os::page_bytes());
  const auto begin = int64_t(reinterpret_cast<uintptr_t>(data));
  const int64_t skipped = (page - begin % page) % page;
  const int64_t whole = (bytes - skipped) / page * page;
  if (whole <= 0) return {data, 0};
  return {data + skipped, whole};
}

std::shared_ptr<WriteWatch> WriteWatch::of(const void* data, int64_t bytes) {
  const Pages pages = pages_in(static_cast<const unsigned char*>(data), bytes);
  if (pages.bytes == 0) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(pages.begin);
  const uintptr_t end = begin + uintptr_t(pages.bytes);
  Watches& all = watches();
  // Outlives the lock, which the destructor takes: this may be the last one that has the watch.
  std::shared_ptr<WriteWatch> watch;
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_begin.find(begin); found != all.by_begin.end())
    watch = found->second.lock();
  if (watch != nullptr) return watch->end_ == end ? watch : nullptr;
  if (overlaps(all, begin, end) || !os::watch_pages(begin, end)) return nullptr;
  watch.reset(new WriteWatch(begin, end));
  all.by_begin[begin] = watch;
  all.ends[begin] = end;
  return watch;
}

WriteWatch::~WriteWatch() {
  Watches& all = watches();
  const std::lock_guard lock(all.mutex);
  all.by_begin.erase(begin_);
  all.ends.erase(begin_);
  os::unwatch_pages(begin_, end_);
}

uint64_t WriteWatch::generation() {
  const std::lock_guard lock(watches().mutex);
  const os::Writes writes = os::take_writes(begin_, end_);
  if (writes == os::Writes::kUnknown) return 0;
  generation_ += generation_ == 0 || writes == os::Writes::kSome;
  return generation_;
}

}  // namespace sdx
