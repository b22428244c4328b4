#include "base/listed.h"

#include <cstdio>

namespace sdx {

Listed listed(const int64_t* sizes, int n) {
  Listed list;
  constexpr int kRoom = sizeof list.text - 5;  // keeps ...) and the end
  int used = snprintf(list.text, sizeof list.text, "(");
  for (int i = 0; i < n; ++i) {
    char size[24];
    const int length = snprintf(size, sizeof size, i > 0 ? ", %ld" : "%ld", long(sizes[i]));
    const bool fits = used + length <= kRoom;
    used += snprintf(list.text + used, sizeof list.text - size_t(used), "%s", fits ? size : "...");
    if (!fits) break;
  }
  snprintf(list.text + used, sizeof list.text - size_t(used), ")");
  return list;
}

}  // namespace sdx
