// A 64-bit digest of memory that others write to, to notice that they did.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sdx {

// Spans of memory, which the caller keeps alive while it asks for digests.
class MemoryDigest {
 public:
  explicit MemoryDigest(const std::vector<std::pair<const void*, int64_t>>& spans);

  // A digest of all bytes, on the threads of the pool: the same for any number of them. A change
  // of one 64-bit word always changes it, any other change with probability 1 - 2^-64.
  // Not a cryptographic hash: whoever chooses the bytes can find collisions.
  uint64_t compute(int threads) const;

 private:
  struct Chunk {
    const unsigned char* begin;
    int64_t bytes;
  };
  std::vector<Chunk> chunks_;
};

}  // namespace sdx
