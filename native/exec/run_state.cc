#include "exec/run_state.h"

#include <algorithm>

namespace sdx {

int64_t with_live_bytes(const RunState& state, int64_t bytes) {
  if (state.limit_bytes == INT64_MAX) return bytes;
  std::vector<const std::byte*> seen;  // aliases and captures show one block in several slots
  for (const RunState* run = &state; run != nullptr; run = run->outer) {
    bytes += run->collected_bytes;
    for (const Slot& slot : run->slots) {
      const std::byte* block = slot.block.get();
      if (block == nullptr || std::find(seen.begin(), seen.end(), block) != seen.end()) continue;
      seen.push_back(block);
      bytes += slot.view.count() * size_of(slot.view.dtype);
    }
  }
  return bytes;
}

}  // namespace sdx
