// Validates a program before it becomes runnable, so that the executor can use every index in it
// unchecked. Python builds specs field by field (bind/specs.cc), and `check` proves what the types
// do not: indices are in range, values are written before they are read, views refer to earlier
// values, ranks stay within kMaxRank, bodies have the inputs and outputs that their node needs.
#pragma once

#include <stdexcept>

#include "exec/program.h"

namespace sdx {

// A bug of the compiler (program/): no model, no pack and no feed can cause it. A pack has no
// programs, only the lowered graph, which is validated before program/ compiles it (pack/check.py).
class MalformedProgram : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Each throws MalformedProgram with the first violation.
void check(const SegmentSpec& spec, int n_slots, int n_names);
void check(const ControlNode& control, int n_slots, int n_names);
void check(const ProgramSpec& spec);

}  // namespace sdx
