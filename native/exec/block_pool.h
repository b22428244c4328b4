// Memory for arenas and outputs: a caching allocator, one pool per program. A block returns to its
// pool when its last owner releases it (an output's block when its array dies) and serves a later
// run: the first touch of a page costs about 0.4 us, so reusing pages matters.
//
// Thread-safe: one process-wide mutex guards the lists of all pools (it is held for a few
// instructions); counters are atomics.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace sdx {

struct Block;
enum class BlockKind : uint8_t;

// What a pool does with blocks that are released.
enum class Caching : uint8_t {
  none,    // frees them
  blocks,  // keeps them for requests of about their size: quick, for runs of equal sizes
  pages,   // keeps their pages for requests of any size (page_allocator.h): exact, for training
};

// Caches what runs need and no more. Of cached blocks, what none of the last kIdleRuns runs used
// goes back to the system, and so does the tail beyond the recent high-water mark of a block.
// Everything is freed with the pool; blocks that outlive it free themselves.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  explicit BlockPool(Caching caching);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // The arena of one run of a segment, or another block of it, by unique ownership; the pool must
  // outlive it.
  class Arena {
   public:
    Arena() = default;
    Arena(Arena&& other) noexcept { *this = std::move(other); }
    Arena& operator=(Arena&& other) noexcept;
    ~Arena();
    std::byte* get() const { return data_; }

   private:
    friend class BlockPool;
    Arena(BlockPool* pool, std::byte* data) : pool_(pool), data_(data) {}
    BlockPool* pool_ = nullptr;  // null for small arenas, which malloc provides
    std::byte* data_ = nullptr;
  };

  // Both are 64-byte aligned and not cleared, and throw std::bad_alloc when out of memory.
  Arena arena(size_t bytes);
  std::shared_ptr<std::byte> block(size_t bytes);

  // Call after each run: the age of cached blocks is counted in runs.
  void end_run();

  // Frees all cached blocks now, and those in use when they are released.
  void release_cached();

  size_t cached_bytes() const;
  size_t cached_blocks() const;
  size_t live_blocks() const { return n_live_.load(); }  // in use, of cacheable sizes

 private:
  friend size_t cached_bytes();
  struct Recycle;

  Block* take(size_t bytes, BlockKind kind);
  Block* find(size_t wanted, BlockKind kind);
  Block* unlink(Block* block, Block* before);
  template <class Condition>
  Block* unlink_oldest(Condition condition);
  void put_back(Block* block);

  const Caching caching_;
  Block *oldest_ = nullptr, *latest_ = nullptr;  // cached blocks, a linked list by time of release
  size_t bytes_ = 0;                             // of cached blocks
  std::atomic<size_t> n_cached_{0}, n_live_{0}, n_arenas_{0};
  std::atomic<uint64_t> runs_{0}, release_count_{0};
};

// Bytes that all pools of the process cache.
size_t cached_bytes();

}  // namespace sdx
