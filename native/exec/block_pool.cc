#include "exec/block_pool.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "exec/page_allocator.h"
#include "os/system.h"

namespace sdx {

// Arenas and large blocks are mappings of their own: they grow and shrink without a copy,
// keep the pages that were touched, and really return their memory when they are freed. Blocks of a
// pool that caches pages are paged.
enum class BlockKind : uint8_t { arena, mapped, heap, paged };

// The header before a block's bytes.
struct Block {
  size_t capacity;            // header included, as all sizes here
  size_t max_used_bytes;      // since the run number `max_since_run`
  uint64_t max_since_run;     // run number
  uint64_t last_release_run;  // run number
  uint64_t release_count;     // the pool's count of release_cached calls at allocation
  Block* next;                // in the list of cached blocks
  BlockKind kind;

  static constexpr size_t kSize = 64;
  std::byte* data() { return reinterpret_cast<std::byte*>(this) + kSize; }
  static Block* of(std::byte* data) { return reinterpret_cast<Block*>(data - kSize); }
};
static_assert(sizeof(Block) <= Block::kSize);

namespace {

constexpr size_t kSmall = 32 * 1024;              // below, malloc caches well enough itself
constexpr size_t kMapped = 128 * 1024;            // from here on blocks are mappings
constexpr size_t kMaxCached = size_t(256) << 20;  // besides what the latest run used
constexpr uint64_t kIdleRuns = 16;  // runs after which unused memory goes back to the system

// One lock for all pools: with it, a single fork handler can hold it over a fork, so that
// the child never inherits it locked.
struct AllPools {
  std::mutex mutex;
  std::vector<BlockPool*> all;
  PageAllocator pages;  // of all pools that cache pages
};

// Never destroyed: outputs may be released while statics are being destroyed.
AllPools& pools() {
  static AllPools* const instance = [] {
    static AllPools* created = new AllPools;
    os::at_fork([] { created->mutex.lock(); }, [] { created->mutex.unlock(); },
                [] { created->mutex.unlock(); });
    return created;
  }();
  return *instance;
}

// Made when the library is loaded: a fork during a first call would leave its guard locked.
[[maybe_unused]] const AllPools& at_load = pools();

// Arenas that grew once tend to grow again, so they get an eighth more; untouched pages cost
// nothing.
size_t with_headroom(size_t bytes) { return whole_pages(bytes + bytes / 8); }

void* allocate(size_t capacity, BlockKind kind) {
  switch (kind) {
    case BlockKind::heap: return os::allocate_aligned(capacity);
    case BlockKind::paged: {
      std::lock_guard lock(pools().mutex);
      return pools().pages.allocate(capacity);
    }
    default: return os::map_pages(capacity);
  }
}

Block* make_block(size_t bytes, BlockKind kind) {
  const size_t capacity =
      kind == BlockKind::heap ? (bytes + 4095) / 4096 * 4096 : whole_pages(bytes);
  void* made = allocate(capacity, kind);
  if (made == nullptr) return nullptr;
  auto* block = new (made) Block{};
  block->capacity = capacity;
  block->kind = kind;
  return block;
}

// Returns a block to the system.
void free_block(Block* block) {
  switch (block->kind) {
    case BlockKind::heap: return os::free_aligned(block);
    case BlockKind::paged: {
      std::lock_guard lock(pools().mutex);
      return pools().pages.release(reinterpret_cast<std::byte*>(block), block->capacity);
    }
    default: os::unmap_pages(block, block->capacity);
  }
}

// Resizes a mapping, which may move. Null when out of memory: the block is freed then.
Block* resize(Block* block, size_t capacity) {
  void* made = os::resize_pages(block, block->capacity, capacity);
  if (made == nullptr) {
    free_block(block);
    return nullptr;
  }
  block = static_cast<Block*>(made);
  block->capacity = capacity;
  return block;
}

// Keeps the pages of a block for others.
void free_pages(Block* block) {
  std::lock_guard lock(pools().mutex);
  pools().pages.free(reinterpret_cast<std::byte*>(block), block->capacity);
}

void free_all(Block* first) {
  while (first != nullptr) free_block(std::exchange(first, first->next));
}

// Whether a cached block may serve a request. Outputs live as long as their user likes, so they
// should not hold much more than they need; arenas of concurrent runs should not all become as
// large as the largest.
bool is_suitable(const Block& block, size_t wanted, bool is_alone) {
  switch (block.kind) {
    case BlockKind::arena: return is_alone || block.capacity / 4 <= wanted;
    case BlockKind::mapped: return block.capacity / 2 <= wanted && wanted / 2 <= block.capacity;
    case BlockKind::heap: return block.capacity / 2 <= wanted && wanted <= block.capacity;
    case BlockKind::paged: break;  // never cached as a block
  }
  return false;
}

// Best fit: the tightest block that is large enough, else the largest, which has the least to grow.
bool is_better(size_t a, size_t b, size_t wanted) {
  if (a < wanted || b < wanted) return a >= b;
  return a <= b;
}

std::byte* small_bytes(size_t bytes) {
  void* data = os::allocate_aligned((bytes + 64) / 64 * 64);
  if (data == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

}  // namespace

// The deleter of shared blocks: their pool may be gone by then.
struct BlockPool::Recycle {
  std::weak_ptr<BlockPool> pool;
  void operator()(std::byte* data) const {
    Block* block = Block::of(data);
    if (const std::shared_ptr<BlockPool> alive = pool.lock())
      alive->put_back(block);
    else
      free_block(block);
  }
};

BlockPool::BlockPool(Caching caching) : caching_(caching) {
  std::lock_guard lock(pools().mutex);
  pools().all.push_back(this);
}

BlockPool::~BlockPool() {
  {
    std::lock_guard lock(pools().mutex);
    std::erase(pools().all, this);
    if (caching_ == Caching::pages) pools().pages.trim();
  }
  free_all(oldest_);
}

BlockPool::Arena& BlockPool::Arena::operator=(Arena&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  return *this;
}

BlockPool::Arena::~Arena() {
  if (pool_ == nullptr) {
    os::free_aligned(data_);
    return;
  }
  pool_->n_arenas_.fetch_sub(1, std::memory_order_relaxed);
  pool_->put_back(Block::of(data_));
}

BlockPool::Arena BlockPool::arena(size_t bytes) {
  if (bytes < kSmall) return {nullptr, small_bytes(bytes)};
  Block* block = take(bytes, BlockKind::arena);
  n_arenas_.fetch_add(1, std::memory_order_relaxed);
  return {this, block->data()};
}

std::shared_ptr<std::byte> BlockPool::block(size_t bytes) {
  if (bytes < kSmall) return {small_bytes(bytes), [](std::byte* p) { os::free_aligned(p); }};
  Block* block = take(bytes, bytes < kMapped ? BlockKind::heap : BlockKind::mapped);
  return {block->data(), Recycle{weak_from_this()}};
}

Block* BlockPool::take(size_t bytes, BlockKind kind) {
  const size_t wanted = bytes + Block::kSize;
  if (caching_ == Caching::pages && kind != BlockKind::heap) kind = BlockKind::paged;
  Block* found = n_cached_.load(std::memory_order_relaxed) == 0 ? nullptr : find(wanted, kind);
  if (found != nullptr && found->capacity < wanted)
    found = resize(found, kind == BlockKind::arena ? with_headroom(wanted) : whole_pages(wanted));
  if (found == nullptr) found = make_block(wanted, kind);
  if (found == nullptr) {
    release_cached();
    found = make_block(wanted, kind);
  }
  // The number of mappings and the addresses of a process are limited; malloc may still have
  // memory.
  if (found == nullptr) found = make_block(wanted, BlockKind::heap);
  if (found == nullptr) throw std::bad_alloc();
  found->max_used_bytes = std::max(found->max_used_bytes, wanted);
  found->release_count = release_count_.load();
  n_live_.fetch_add(1, std::memory_order_relaxed);
  return found;
}

Block* BlockPool::find(size_t wanted, BlockKind kind) {
  const bool is_alone = n_arenas_.load(std::memory_order_relaxed) == 0;
  std::lock_guard lock(pools().mutex);
  Block *best = nullptr, *before_best = nullptr;
  for (Block *block = oldest_, *before = nullptr; block != nullptr;
       before = std::exchange(block, block->next)) {
    if (block->kind != kind || !is_suitable(*block, wanted, is_alone)) continue;
    if (best != nullptr && !is_better(block->capacity, best->capacity, wanted)) continue;
    best = block;
    before_best = before;
  }
  return best == nullptr ? nullptr : unlink(best, before_best);
}

Block* BlockPool::unlink(Block* block, Block* before) {
  (before == nullptr ? oldest_ : before->next) = block->next;
  if (latest_ == block) latest_ = before;
  bytes_ -= block->capacity;
  n_cached_.fetch_sub(1, std::memory_order_relaxed);
  return block;
}

// Removes blocks from the old end of the list while the condition holds; returns them as a list.
template <class Condition>
Block* BlockPool::unlink_oldest(Condition condition) {
  Block* gone = nullptr;
  while (oldest_ != nullptr && condition(*oldest_)) {
    Block* block = unlink(oldest_, nullptr);
    block->next = std::exchange(gone, block);
  }
  return gone;
}

void BlockPool::put_back(Block* block) {
  n_live_.fetch_sub(1, std::memory_order_relaxed);
  if (caching_ == Caching::none || block->release_count != release_count_.load())
    return free_block(block);
  if (caching_ == Caching::pages)
    return block->kind == BlockKind::paged ? free_pages(block) : free_block(block);
  const uint64_t now = runs_.load(std::memory_order_relaxed);
  block->last_release_run = now;
  // Once per kIdleRuns runs, a block shrinks to the most that these used of it.
  if (now - block->max_since_run >= kIdleRuns) {
    const size_t enough = whole_pages(block->max_used_bytes);
    if (block->kind != BlockKind::heap && enough < block->capacity) block = resize(block, enough);
    if (block == nullptr) return;
    block->max_since_run = now;
    block->max_used_bytes = 0;
  }
  block->next = nullptr;
  Block* surplus = nullptr;
  {
    std::lock_guard lock(pools().mutex);
    (latest_ == nullptr ? oldest_ : latest_->next) = block;
    latest_ = block;
    bytes_ += block->capacity;
    n_cached_.fetch_add(1, std::memory_order_relaxed);
    surplus = unlink_oldest(
        [&](const Block& old) { return bytes_ > kMaxCached && old.last_release_run + 1 < now; });
  }
  free_all(surplus);
}

void BlockPool::end_run() {
  const uint64_t now = runs_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (n_cached_.load(std::memory_order_relaxed) == 0) return;
  Block* gone = nullptr;
  {
    std::lock_guard lock(pools().mutex);
    gone = unlink_oldest([&](const Block& old) { return old.last_release_run + kIdleRuns < now; });
  }
  free_all(gone);
}

void BlockPool::release_cached() {
  release_count_.fetch_add(1);
  Block* gone = nullptr;
  {
    std::lock_guard lock(pools().mutex);
    gone = unlink_oldest([](const Block&) { return true; });
    if (caching_ == Caching::pages) pools().pages.trim();
  }
  free_all(gone);
}

size_t BlockPool::cached_bytes() const {
  std::lock_guard lock(pools().mutex);
  return caching_ == Caching::pages ? pools().pages.resident_free_bytes() : bytes_;
}

size_t BlockPool::cached_blocks() const { return n_cached_.load(); }

size_t cached_bytes() {
  std::lock_guard lock(pools().mutex);
  size_t bytes = pools().pages.resident_free_bytes();
  for (const BlockPool* pool : pools().all) bytes += pool->bytes_;
  return bytes;
}

}  // namespace sdx
