// A 64-bit digest of memory that others write to, to notice that they did.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "exec/fork_mutex.h"
#include "exec/write_watch.h"

namespace sdx {

// Spans of memory, which the caller keeps alive while it asks for digests. Memory that stays as it
// is for some digests is watched for writes then, where that is possible, and is not read again
// until there is one.
class MemoryDigest {
 public:
  explicit MemoryDigest(const std::vector<std::pair<const void*, int64_t>>& spans);

  // A digest of all bytes, on the threads of the pool: the same for any number of them. A change
  // of one 64-bit word always changes it, any other change with probability 1 - 2^-64.
  // Not a cryptographic hash: whoever chooses the bytes can find collisions. Thread-safe.
  uint64_t compute(int threads);

  // How many bytes are watched instead of being read.
  int64_t watched_bytes();

 private:
  struct Chunk {
    const unsigned char* begin;
    int64_t bytes;
  };
  struct Span {
    const void* data;
    int64_t bytes;
    size_t first;  // the chunk with which its whole pages begin
  };
  // Chunks [begin, end) that a watch covers.
  struct Watched {
    std::shared_ptr<WriteWatch> watch;
    size_t begin, end;
    uint64_t generation;  // of their digests
  };
  // What is known after a call.
  struct State {
    std::vector<uint64_t> digests;  // of the chunks
    std::vector<Watched> watched;
    uint64_t latest = 0;
    int n_unchanged = 0;  // calls since the one whose digest differed
  };

  State state();
  void append(const unsigned char* data, int64_t bytes);
  std::vector<Watched> watch() const;
  std::vector<size_t> update_generations(std::vector<Watched>& watched) const;

  std::vector<Span> spans_;
  std::vector<Chunk> chunks_;
  ForkMutex mutex_;  // of the state; not held while a watch is asked, which has a lock of its own
  State state_;
};

}  // namespace sdx
