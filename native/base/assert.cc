#include "base/assert.h"

#ifdef SARDONYX_ASSERTIONS
#include <cstdio>
#include <cstdlib>

namespace sdx {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace sdx
#endif
