// What a segment becomes for given sizes: plans of all steps and where their operands lie.
#pragma once

#include <vector>

#include "exec/frame.h"
#include "exec/segment.h"

namespace sdx {

// Where an operand lies: an offset into the arena, a slot or, with no base, an address.
struct Place {
  static constexpr int32_t kAbsent = -3, kFixed = -2, kArena = -1;
  int32_t base = kAbsent;
  int64_t offset = 0;
};

struct BoundStep {
  Plan plan;
  int32_t lane = 0;         // of its round
  int32_t number = 0;       // in the segment
  int32_t first_place = 0;  // inputs, then outputs
  int32_t n_in = 0, n_out = 0;
  int64_t scratch = 0;  // offset into the arena
};

struct Export {
  int32_t slot;
  int32_t root;  // the slot whose block it shares; its own for most
  View view;
  int64_t bytes;               // of its block
  int32_t growth = -1;         // which of the segment's it is
  int64_t rows = 0, room = 0;  // that it has, and that fit, if it is one
};

struct Binding {
  std::vector<int64_t> key;
  std::vector<BoundStep> steps;  // in the order they run
  std::vector<int32_t> ends;     // by step: the last of those that run at once
  std::vector<Place> places;
  std::vector<Export> exports;
  int64_t arena_bytes = 0;
  Peak peak;                // of what lies in the arena
  int64_t local_bytes = 0;  // the most that any step wants for each thread
  Bump memory;              // of the plans' arguments
};

// Makes a binding for these names; `spans`, if given, are told when each value is alive.
std::shared_ptr<const Binding> make_binding(const SegmentSpec& spec, const Wiring& wiring,
                                            const RunState& state, Choice& choice, Outcome& outcome,
                                            std::vector<Span>* spans = nullptr);

// The views of all values for these registers; false where a shape does not fit memory.
bool make_views(const SegmentSpec& spec, const RunState& state, const int64_t* registers,
                std::vector<View>& views);

}  // namespace sdx
