#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace sdx {

Status Status::fail(const char* format, ...) {
  Status status;
  va_list args;
  va_start(args, format);
  vsnprintf(status.text_, sizeof status.text_, format, args);
  va_end(args);
  return status;
}

}  // namespace sdx
