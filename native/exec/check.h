// Proves that a program is well formed before it is made: the executor trusts every number in it.
#pragma once

#include <stdexcept>

#include "exec/sequence.h"

namespace sdx {

// A broken invariant of the compiler's: no model and no feed can cause one.
class MalformedProgram : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Each throws MalformedProgram with what is wrong: registers, slots, names, values or steps that
// are not there or are read before they are made, ranks above kMaxRank, lists of the wrong length.
void check(const SegmentSpec& spec, int n_slots, int n_names);
void check(const Control& control, int n_slots, int n_names);
void check(const SequenceSpec& spec);

}  // namespace sdx
