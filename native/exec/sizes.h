// Sizes as flat register programs over the dims that inputs give.
#pragma once

#include <cstdint>
#include <vector>

namespace sdx {

enum class SizeKind : uint8_t {
  number,  // value
  name,    // the dim numbered a
  add,     // of registers a and b, like all that follow
  mul,
  div,  // rounds down
  mod,  // has the sign of the divisor
  min,
  max,
  broadcast,  // the one that is not 1
};

struct SizeOp {
  SizeKind kind;
  int32_t a, b;
  int64_t value;
};

enum class GuardKind : uint8_t { equal, equal_or_one, broadcasts, divides, at_least };

struct Guard {
  GuardKind kind;
  int32_t left, right;  // registers
};

// Fills one register per op. False where a result does not fit 64 bits or a divisor is 0.
bool evaluate(const std::vector<SizeOp>& ops, const int64_t* names, int64_t* registers);

bool holds(const Guard& guard, const int64_t* registers);

}  // namespace sdx
