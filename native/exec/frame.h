// The frame of a segment for given sizes: in which order its steps run, which values take over the
// bytes of others, and where all of them lie.
#pragma once

#include <vector>

#include "exec/place.h"
#include "exec/rounds.h"
#include "exec/wiring.h"

namespace sdx {

// Bytes of one value that may lie in those of another, `offset` behind their beginning.
struct Part {
  int32_t value, whole;  // arena values
  int64_t offset;
};

// A value that a step may write over one of its inputs.
struct Share {
  int32_t step, from, to;  // arena values
};

// A value that leaves the segment. Until a step writes to it, its block can hold others.
struct Lender {
  int32_t slot;
  int64_t bytes;
  std::vector<int32_t> steps;  // that write to it
};

// What sizes say of a segment's memory.
struct Need {
  std::vector<int64_t> bytes;    // by value; of arena values, multiples of kAlign
  std::vector<int64_t> scratch;  // by step, likewise
  std::vector<Share> shares;
  std::vector<std::vector<Part>> joins;  // of each step that joins; empty where it cannot
  std::vector<Lender> lenders;
  Costs costs;
};

// What is decided once and serves sizes to come: an order, the joins that are made, ranks of lives.
struct Choice {
  std::vector<int32_t> order;
  std::vector<char> is_joined;  // by join
  Ranks ranks;
  int64_t searched_bytes = -1;  // alive in the frame that it was found for; -1: none yet
};

struct Frame {
  std::vector<int32_t> order;  // steps
  Rounds rounds;
  std::vector<int64_t> offsets;  // by value
  std::vector<int32_t> lent;     // by value: the slot whose block it lies in; -1: the arena
  std::vector<int64_t> scratch;  // offsets, by step
  int64_t bytes = 0;             // of the arena
  int64_t alive_bytes = 0;       // at once, what is lent included
  Peak peak;                     // of what lies in the arena
};

// `effort` as least_peak has it; below 0 the steps run in the order they are given in.
Frame make_frame(const Wiring& wiring, const Need& need, int effort, Choice& choice);

// When each arena value is touched first and last.
std::vector<Span> spans_of(const Wiring& wiring, const Need& need, const Frame& frame);

}  // namespace sdx
