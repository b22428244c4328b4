// Assertions about internal invariants. Sanitizer builds compile them in (SARDONYX_ASSERTIONS);
// release builds omit them, because exec/check.h has validated the program before it runs.
#pragma once

#ifdef SARDONYX_ASSERTIONS
namespace sdx {
// Prints the condition with file and line, then aborts, so that a sanitizer shows the stack.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}  // namespace sdx
#define SDX_ASSERT(condition) \
  ((condition) ? void() : ::sdx::assertion_failed(#condition, __FILE__, __LINE__))
#else
#define SDX_ASSERT(condition) static_cast<void>(0)
#endif
