// A hash table of strings (open addressing, linear probing), built once when the session is created
// (bind/strings.cc) and read by any thread without a lock.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "base/text.h"

namespace sdx {

// An xor-shift-multiply finalizer: every input bit reaches the low bits, which pick the slot, and
// the high bits, which the slot stores.
SDX_INLINE uint64_t mix_hash(uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

// Eight bytes per step. Callers that hash untrusted strings pass a secret seed, so that nobody can
// construct inputs that all collide.
SDX_INLINE uint64_t hash_of(const Text& text, uint64_t seed = 0) {
  uint64_t h = seed ^ uint64_t(text.size) * 0x9e3779b97f4a7c15u, word;
  int64_t i = 0;
  for (; i + 8 <= text.size; i += 8) {
    memcpy(&word, text.data + i, 8);
    h = mix_hash(h ^ word);
  }
  word = 0;
  for (int shift = 0; i < text.size; ++i, shift += 8)
    word |= uint64_t(uint8_t(text.data[i])) << shift;
  return mix_hash(h ^ word);
}

SDX_INLINE bool is_same(const Text& a, const Text& b) {
  return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, size_t(a.size)) == 0);
}

// The number of slots is a power of two and at most half are used, so probing ends at a free slot.
// A slot holds the upper 32 bits of a key's hash, which saves most string comparisons, and the
// key's index plus one; 0 marks a free slot.
struct TextIndex {
  const uint64_t* slots;
  int64_t n_slots;
  const Text* keys;

  // The index of a key, or -1.
  SDX_INLINE int64_t find(const Text& text) const {
    const uint64_t h = hash_of(text), mask = uint64_t(n_slots) - 1;
    for (uint64_t at = h & mask;; at = (at + 1) & mask) {
      const uint64_t slot = slots[at];
      if (slot == 0) return -1;
      const auto number = int64_t(uint32_t(slot)) - 1;
      if (slot >> 32 == h >> 32 && is_same(keys[number], text)) return number;
    }
  }
};

}  // namespace sdx
