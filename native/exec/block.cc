#include "exec/block.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace sdx {

// Frames and large blocks are mappings of their own: they grow and shrink without a copy, those
// pages stay that were touched, and what is given back is surely gone.
enum class BlockKind : uint8_t { frame, mapped, heap };

// What stands before the bytes.
struct Block {
  size_t capacity;  // with this record, as all sizes here
  size_t most;      // bytes used since the run `since`
  uint64_t since, when;
  uint64_t drops;  // of the pool, when it was taken
  Block* next;     // that is kept
  BlockKind kind;
  bool is_kept;  // when it is let go

  static constexpr size_t kSize = 64;
  std::byte* data() { return reinterpret_cast<std::byte*>(this) + kSize; }
  static Block* of(std::byte* data) { return reinterpret_cast<Block*>(data - kSize); }
};
static_assert(sizeof(Block) <= Block::kSize);

namespace {

constexpr size_t kSmall = 32 * 1024;    // below, malloc does all
constexpr size_t kMapped = 128 * 1024;  // blocks from here on are mappings
// Beside what the latest run used; a block above it is kept from the second run on that needs one.
constexpr size_t kMostKept = size_t(256) << 20;
constexpr uint64_t kPatience = 16;  // runs

// One lock for all pools: it is held for a few instructions, and a fork must not copy it locked.
struct Pools {
  std::mutex mutex;
  std::vector<Pool*> all;
};

// Never destroyed: outputs may outlive the interpreter's last moments.
Pools& pools() {
  static Pools* const made = [] {
    static Pools* fresh = new Pools;
    pthread_atfork([] { fresh->mutex.lock(); }, [] { fresh->mutex.unlock(); },
                   [] { fresh->mutex.unlock(); });
    return fresh;
  }();
  return *made;
}

size_t whole_pages(size_t bytes) {
  static const auto page = size_t(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// What grows once grows again, so it gets an eighth more; pages that nobody touches cost nothing.
size_t roomy(size_t bytes) { return whole_pages(bytes + bytes / 8); }

Block* make_block(size_t bytes, BlockKind kind) {
  const size_t capacity =
      kind == BlockKind::heap ? (bytes + 4095) / 4096 * 4096 : whole_pages(bytes);
  void* made = kind == BlockKind::heap ? std::aligned_alloc(64, capacity)
                                       : mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == nullptr || made == MAP_FAILED) return nullptr;
  auto* block = new (made) Block{};
  block->capacity = capacity;
  block->kind = kind;
  return block;
}

void free_block(Block* block) {
  if (block->kind == BlockKind::heap)
    std::free(block);
  else
    munmap(block, block->capacity);
}

// ThreadSanitizer does not see what mremap moves, and takes an address that is mapped again for one
// that two threads use: for it, the block is made anew.
#ifdef __SANITIZE_THREAD__
void* remap(Block* block, size_t capacity) {
  Block* made = make_block(capacity, block->kind);
  if (made == nullptr) return MAP_FAILED;
  *made = *block;
  munmap(block, block->capacity);
  return made;
}
#else
void* remap(Block* block, size_t capacity) {
  return mremap(block, block->capacity, capacity, MREMAP_MAYMOVE);
}
#endif

// The mapping with another capacity, maybe elsewhere; null where there is no memory, and it is
// gone.
Block* resize(Block* block, size_t capacity) {
  void* made = remap(block, capacity);
  if (made == MAP_FAILED) {
    free_block(block);
    return nullptr;
  }
  block = static_cast<Block*>(made);
  block->capacity = capacity;
  return block;
}

void free_all(Block* first) {
  while (first != nullptr) free_block(std::exchange(first, first->next));
}

// Whether a kept block may serve. Outputs live as long as their user likes, so that they should
// not hold much more than they need; frames of several runs at once should not all become as large
// as the largest.
bool suits(const Block& block, size_t wanted, bool is_alone) {
  switch (block.kind) {
    case BlockKind::frame: return is_alone || block.capacity / 4 <= wanted;
    case BlockKind::mapped: return block.capacity / 2 <= wanted && wanted / 2 <= block.capacity;
    case BlockKind::heap: return block.capacity / 2 <= wanted && wanted <= block.capacity;
  }
  return false;
}

// The tightest that is large enough, else the largest, which has the least to grow.
bool is_better(size_t a, size_t b, size_t wanted) {
  if (a < wanted || b < wanted) return a >= b;
  return a <= b;
}

std::byte* small_bytes(size_t bytes) {
  void* data = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (data == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

}  // namespace

// Ends a block that has owners outside: the pool may be gone by then.
struct Pool::Recycle {
  std::weak_ptr<Pool> pool;
  void operator()(std::byte* data) const {
    Block* block = Block::of(data);
    if (const std::shared_ptr<Pool> alive = pool.lock())
      alive->give(block);
    else
      free_block(block);
  }
};

Pool::Pool(bool keeps) : keeps_(keeps) {
  std::lock_guard lock(pools().mutex);
  pools().all.push_back(this);
}

Pool::~Pool() {
  {
    std::lock_guard lock(pools().mutex);
    std::erase(pools().all, this);
  }
  free_all(oldest_);
}

Pool::Frame& Pool::Frame::operator=(Frame&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  return *this;
}

Pool::Frame::~Frame() {
  if (pool_ == nullptr) {
    std::free(data_);
    return;
  }
  pool_->n_frames_.fetch_sub(1, std::memory_order_relaxed);
  pool_->give(Block::of(data_));
}

Pool::Frame Pool::frame(size_t bytes) {
  if (bytes < kSmall) return {nullptr, small_bytes(bytes)};
  Block* block = take(bytes, BlockKind::frame);
  n_frames_.fetch_add(1, std::memory_order_relaxed);
  return {this, block->data()};
}

std::shared_ptr<std::byte> Pool::block(size_t bytes) {
  if (bytes < kSmall) return {small_bytes(bytes), [](std::byte* p) { std::free(p); }};
  Block* block = take(bytes, bytes < kMapped ? BlockKind::heap : BlockKind::mapped);
  return {block->data(), Recycle{weak_from_this()}};
}

Block* Pool::take(size_t bytes, BlockKind kind) {
  const size_t wanted = bytes + Block::kSize;
  Block* found = n_kept_.load(std::memory_order_relaxed) == 0 ? nullptr : find(wanted, kind);
  if (found != nullptr && found->capacity < wanted)
    found = resize(found, kind == BlockKind::frame ? roomy(wanted) : whole_pages(wanted));
  if (found == nullptr) found = make_block(wanted, kind);
  if (found == nullptr) {
    drop_kept();
    found = make_block(wanted, kind);
  }
  // A process may have only so many mappings.
  if (found == nullptr) found = make_block(wanted, BlockKind::heap);
  if (found == nullptr) throw std::bad_alloc();
  found->most = std::max(found->most, wanted);
  found->drops = drops_.load();
  found->is_kept = keeps_ && (wanted <= kMostKept || is_large_again());
  n_live_.fetch_add(1, std::memory_order_relaxed);
  return found;
}

// Whether another of the last runs needed a large block, too.
bool Pool::is_large_again() {
  const uint64_t now = runs_.load(std::memory_order_relaxed);
  if (large_last_ == kNever || now - large_last_ > kPatience) large_first_ = now;
  large_last_ = now;
  return large_first_ != now;
}

Block* Pool::find(size_t wanted, BlockKind kind) {
  const bool is_alone = n_frames_.load(std::memory_order_relaxed) == 0;
  std::lock_guard lock(pools().mutex);
  Block *best = nullptr, *before_best = nullptr;
  for (Block *block = oldest_, *before = nullptr; block != nullptr;
       before = std::exchange(block, block->next)) {
    if (block->kind != kind || !suits(*block, wanted, is_alone)) continue;
    if (best != nullptr && !is_better(block->capacity, best->capacity, wanted)) continue;
    best = block;
    before_best = before;
  }
  return best == nullptr ? nullptr : unlink(best, before_best);
}

Block* Pool::unlink(Block* block, Block* before) {
  (before == nullptr ? oldest_ : before->next) = block->next;
  if (latest_ == block) latest_ = before;
  bytes_ -= block->capacity;
  n_kept_.fetch_sub(1, std::memory_order_relaxed);
  return block;
}

// Those at the old end for which the condition holds, as a list.
template <class Condition>
Block* Pool::unlink_oldest(Condition condition) {
  Block* gone = nullptr;
  while (oldest_ != nullptr && condition(*oldest_)) {
    Block* block = unlink(oldest_, nullptr);
    block->next = std::exchange(gone, block);
  }
  return gone;
}

void Pool::give(Block* block) {
  n_live_.fetch_sub(1, std::memory_order_relaxed);
  if (!block->is_kept || block->drops != drops_.load()) return free_block(block);
  const uint64_t now = runs_.load(std::memory_order_relaxed);
  block->when = now;
  if (now - block->since >= kPatience) {
    const size_t enough = whole_pages(block->most);
    if (block->kind != BlockKind::heap && enough < block->capacity) block = resize(block, enough);
    if (block == nullptr) return;
    block->since = now;
    block->most = 0;
  }
  block->next = nullptr;
  Block* surplus = nullptr;
  {
    std::lock_guard lock(pools().mutex);
    (latest_ == nullptr ? oldest_ : latest_->next) = block;
    latest_ = block;
    bytes_ += block->capacity;
    n_kept_.fetch_add(1, std::memory_order_relaxed);
    surplus =
        unlink_oldest([&](const Block& old) { return bytes_ > kMostKept && old.when + 1 < now; });
  }
  free_all(surplus);
}

void Pool::end_run() {
  const uint64_t now = runs_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (n_kept_.load(std::memory_order_relaxed) == 0) return;
  Block* gone = nullptr;
  {
    std::lock_guard lock(pools().mutex);
    gone = unlink_oldest([&](const Block& old) { return old.when + kPatience < now; });
  }
  free_all(gone);
}

void Pool::drop_kept() {
  drops_.fetch_add(1);
  Block* gone = nullptr;
  {
    std::lock_guard lock(pools().mutex);
    gone = unlink_oldest([](const Block&) { return true; });
  }
  free_all(gone);
}

size_t Pool::kept_bytes() const {
  std::lock_guard lock(pools().mutex);
  return bytes_;
}

size_t Pool::kept_blocks() const { return n_kept_.load(); }

size_t kept_bytes() {
  std::lock_guard lock(pools().mutex);
  size_t bytes = 0;
  for (const Pool* pool : pools().all) bytes += pool->bytes_;
  return bytes;
}

}  // namespace sdx
