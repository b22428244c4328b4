#include "exec/sizes.h"

#include <stddef.h>

namespace sdx {
namespace {

bool apply(SizeKind kind, int64_t a, int64_t b, int64_t* out) {
  switch (kind) {
    case SizeKind::add: return !__builtin_add_overflow(a, b, out);
    case SizeKind::mul: return !__builtin_mul_overflow(a, b, out);
    case SizeKind::div:
    case SizeKind::mod: {
      if (b == 0 || (b == -1 && a == INT64_MIN)) return false;
      // C++ truncates towards zero; symbolic sizes follow Python and round down.
      int64_t rest = a % b;
      int64_t quotient = a / b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        --quotient;
      }
      *out = kind == SizeKind::div ? quotient : rest;
      return true;
    }
    case SizeKind::min: *out = a < b ? a : b; return true;
    case SizeKind::max: *out = a > b ? a : b; return true;
    default: *out = a == 1 ? b : a; return true;  // broadcast
  }
}

}  // namespace

bool evaluate(const std::vector<SizeOp>& ops, const int64_t* names, int64_t* registers) {
  bool fits = true;
  for (size_t i = 0; i < ops.size(); ++i) {
    const SizeOp& op = ops[i];
    if (op.kind == SizeKind::number) {
      registers[i] = op.value;
    } else if (op.kind == SizeKind::name) {
      registers[i] = names[op.a];
    } else if (!apply(op.kind, registers[op.a], registers[op.b], &registers[i])) {
      registers[i] = 0;
      fits = false;
    }
  }
  return fits;
}

bool holds(const Guard& guard, const int64_t* registers) {
  const int64_t a = registers[guard.left], b = registers[guard.right];
  switch (guard.kind) {
    case GuardKind::equal: return a == b;
    case GuardKind::equal_or_one: return a == 1 || a == b;
    case GuardKind::broadcasts: return a == b || a == 1 || b == 1;
    case GuardKind::divides: return a == -1 || (a != 0 && b % a == 0);  // INT64_MIN % -1 traps
    case GuardKind::at_least: return a >= b;
  }
  return false;
}

}  // namespace sdx
