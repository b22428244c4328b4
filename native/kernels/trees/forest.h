// Packed tree ensembles. The nodes of a tree are an array in which siblings are adjacent: a step
// goes to node + hop, or to node + hop + 1 if the condition (feature <= threshold) holds, so a
// branch needs no pointers and no unpredictable jump. A leaf leads to itself: its threshold is NaN,
// for which the condition never holds, and its hop is 0; the NaN's payload bits are the leaf's
// number. Traversals of different depth can therefore run in lockstep for a fixed number of steps.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// 8 bytes per node: float thresholds, features below 2^11, signed hops of 20 bits, leaves below
// 2^22 (the payload of a float NaN). The packer falls back to Wide where a limit is exceeded.
struct CompactNode {
  using Number = float;

  float threshold;
  uint32_t fields;

  SDX_INLINE uint32_t feature() const { return fields & 0x7ff; }
  SDX_INLINE bool is_true_for_nan() const { return (fields >> 11 & 1) != 0; }
  SDX_INLINE int32_t hop() const { return int32_t(fields) >> 12; }
  SDX_INLINE uint32_t leaf() const {
    uint32_t bits;
    memcpy(&bits, &threshold, sizeof bits);
    return bits & 0x3fffff;
  }
};

// 16 bytes per node, for all other forests.
struct WideNode {
  using Number = double;

  double threshold;
  uint32_t fields;
  int32_t hops;

  SDX_INLINE uint32_t feature() const { return fields & 0x7fffffff; }
  SDX_INLINE bool is_true_for_nan() const { return fields >> 31 != 0; }
  SDX_INLINE int32_t hop() const { return hops; }
  SDX_INLINE uint32_t leaf() const {
    uint64_t bits;
    memcpy(&bits, &threshold, sizeof bits);
    return uint32_t(bits);
  }
};

// The first node of a tree, and the number of steps after which most, or all, traversals have
// reached a leaf.
struct Root {
  int32_t start, most_steps, all_steps;
};

constexpr int kLockstep = 16;  // traversals in lockstep: their cache misses overlap

// One step of a traversal, without a branch. NaN features fail the comparison, as ONNX defines,
// unless the node says that missing values take the true branch.
template <bool kHasNanBranches, class Node>
SDX_INLINE const Node* step(const Node* at, const typename Node::Number* x, int64_t stride) {
  const auto value = x[at->feature() * stride];
  bool is_true = value <= at->threshold;
  if constexpr (kHasNanBranches) is_true |= (value != value) & at->is_true_for_nan();
  return at + at->hop() + is_true;
}

// Runs kLockstep traversals to their leaves; feature f of traversal w is x[w * kRowStep + f *
// kStride]. `most_steps` steps run unconditionally; each one after that checks whether any
// traversal still moves.
template <bool kHasNanBranches, int kRowStep, int kStride, class Node>
SDX_INLINE void traverse(const Node* (&at)[kLockstep], const typename Node::Number* x,
                         int most_steps, int all_steps) {
  for (int s = 0; s < most_steps; ++s)
    for (int w = 0; w < kLockstep; ++w)
      at[w] = step<kHasNanBranches>(at[w], x + w * kRowStep, kStride);
  for (int s = most_steps; s < all_steps; ++s) {
    uintptr_t moved = 0;
    for (int w = 0; w < kLockstep; ++w) {
      const Node* next = step<kHasNanBranches>(at[w], x + w * kRowStep, kStride);
      moved |= uintptr_t(next) ^ uintptr_t(at[w]);
      at[w] = next;
    }
    if (moved == 0) return;
  }
}

}  // namespace sdx::SDX_ISA
