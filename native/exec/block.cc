#include "exec/block.h"

#include <pthread.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace sdx {
namespace {

// Blocks under kSmall come from malloc, which is good at them. Larger ones are kept by size class
// (four to a power of two) up to kMostKept in all; the class that was used longest ago goes first.
constexpr size_t kSmall = 32 * 1024;
constexpr size_t kMostKept = size_t(256) << 20;

size_t class_of(size_t bytes) {
  size_t power = kSmall;
  while (power * 2 <= bytes) power *= 2;
  const size_t step = power / 4;
  return (bytes + step - 1) / step * step;
}

struct Store {
  struct Kept {
    std::byte* data;
    size_t bytes;
    uint64_t when;
  };
  std::mutex mutex;
  std::vector<Kept> kept;
  size_t bytes = 0;
  uint64_t clock = 0;

  std::byte* take(size_t wanted) {
    std::lock_guard lock(mutex);
    for (size_t i = kept.size(); i-- > 0;) {
      if (kept[i].bytes != wanted) continue;
      std::byte* data = kept[i].data;
      bytes -= wanted;
      kept.erase(kept.begin() + long(i));
      return data;
    }
    return nullptr;
  }

  void give(std::byte* data, size_t size) {
    std::vector<std::byte*> surplus;
    {
      std::lock_guard lock(mutex);
      kept.push_back({data, size, ++clock});
      bytes += size;
      // What lay unused while this many blocks came and went is of a shape that does not come back.
      while (!kept.empty() && (bytes > kMostKept || clock - kept.front().when > kPatience)) {
        bytes -= kept.front().bytes;
        surplus.push_back(kept.front().data);
        kept.erase(kept.begin());
      }
    }
    for (std::byte* block : surplus) std::free(block);
  }

  static constexpr uint64_t kPatience = 64;
};

// Never destroyed: outputs may outlive the interpreter's last moments.
Store& store() {
  static Store* const made = [] {
    auto* fresh = new Store;
    static Store* shared = fresh;
    // A fork must not copy the lock while another thread holds it.
    pthread_atfork([] { shared->mutex.lock(); }, [] { shared->mutex.unlock(); },
                   [] { shared->mutex.unlock(); });
    return fresh;
  }();
  return *made;
}

}  // namespace

std::shared_ptr<std::byte> make_block(size_t bytes) {
  const size_t size = bytes < kSmall ? (bytes + 64) / 64 * 64 : class_of(bytes);
  std::byte* data = size < kSmall ? nullptr : store().take(size);
  if (data == nullptr) data = static_cast<std::byte*>(std::aligned_alloc(64, size));
  if (data == nullptr) throw std::bad_alloc();
  if (size < kSmall) return {data, [](std::byte* p) { std::free(p); }};
  return {data, [size](std::byte* p) { store().give(p, size); }};
}

size_t kept_bytes() {
  std::lock_guard lock(store().mutex);
  return store().bytes;
}

void drop_kept() {
  std::vector<Store::Kept> all;
  {
    std::lock_guard lock(store().mutex);
    all.swap(store().kept);
    store().bytes = 0;
  }
  for (const Store::Kept& kept : all) std::free(kept.data);
}

}  // namespace sdx
