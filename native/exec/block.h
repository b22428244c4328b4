// Memory for arenas and outputs: a pool takes back what its owners let go, and hands it out again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace sdx {

struct Block;
enum class BlockKind : uint8_t;

// Keeps what runs need and no more: what none of the last few runs used goes back to the system,
// and so does the end of a block that only larger runs reached. All goes with the pool; blocks that
// outlive it free themselves.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // One that does not keep gives everything back at once.
  explicit Pool(bool keeps);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The arena of one segment; back in the pool, which must outlive it, when it ends.
  class Frame {
   public:
    Frame() = default;
    Frame(const Frame&) = delete;
    Frame& operator=(Frame&& other) noexcept;
    ~Frame();
    std::byte* get() const { return data_; }

   private:
    friend class Pool;
    Frame(Pool* pool, std::byte* data) : pool_(pool), data_(data) {}
    Pool* pool_ = nullptr;  // null for small ones
    std::byte* data_ = nullptr;
  };

  // Both 64-byte aligned and not cleared. They throw std::bad_alloc where the system has no such
  // memory.
  Frame frame(size_t bytes);
  std::shared_ptr<std::byte> block(size_t bytes);

  // To be called after each run: blocks grow old by runs.
  void end_run();

  // Gives all that is kept back to the system at once, and what is in use when it is let go.
  void drop_kept();

  size_t kept_bytes() const;
  size_t kept_blocks() const;
  size_t live_blocks() const { return n_live_.load(); }  // in use, of the sizes that are kept

 private:
  friend size_t kept_bytes();
  struct Recycle;

  Block* take(size_t bytes, BlockKind kind);
  Block* find(size_t wanted, BlockKind kind);
  Block* unlink(Block* block, Block* before);
  template <class Condition>
  Block* unlink_oldest(Condition condition);
  bool is_large_again();
  void give(Block* block);

  const bool keeps_;
  Block *oldest_ = nullptr, *latest_ = nullptr;  // of those that are kept, a list
  size_t bytes_ = 0;                             // of them
  std::atomic<size_t> n_kept_{0}, n_live_{0}, n_frames_{0};
  std::atomic<uint64_t> runs_{0}, drops_{0};
  static constexpr uint64_t kNever = UINT64_MAX;
  std::atomic<uint64_t> large_first_{kNever}, large_last_{kNever};  // runs, with no pause between
};

// Bytes that all pools hold for reuse.
size_t kept_bytes();

}  // namespace sdx
