// Sizes as a register program over named dims: Python compiles all symbolic sizes of a segment into
// one list of operations (program/size_registers.py), and a run evaluates it in one pass without
// allocating.
#pragma once

#include <cstdint>
#include <vector>

namespace sdx {

enum class SizeKind : uint8_t {
  number,  // the constant `value`
  name,    // the named dim number a
  add,     // of registers a and b, as all that follow
  mul,
  div,  // rounds down, as Python's //
  mod,  // has the sign of the divisor, as Python's %
  min,
  max,
  broadcast,  // the one that is not 1
};

struct SizeOp {
  SizeKind kind;
  int32_t a, b;
  int64_t value;
};

// Conditions on two registers that inference could not prove for all sizes.
enum class GuardKind : uint8_t { equal, equal_or_one, broadcasts, divides, at_least };

struct Guard {
  GuardKind kind;
  int32_t left, right;  // registers
};

// Sets one register per operation. Returns false where a result does not fit 64 bits or a divisor
// is 0; such a register is 0, and the others are still set, so that guards can name the culprit.
bool evaluate(const std::vector<SizeOp>& ops, const int64_t* names, int64_t* registers);

bool holds(const Guard& guard, const int64_t* registers);

}  // namespace sdx
