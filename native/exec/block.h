// Memory for arenas and outputs: blocks that go back to a store when their last owner lets go.
#pragma once

#include <cstddef>
#include <memory>

namespace sdx {

// 64-byte aligned, not cleared. Throws std::bad_alloc where the system has no such memory.
std::shared_ptr<std::byte> make_block(size_t bytes);

// Bytes that the store holds for reuse.
size_t kept_bytes();

// Gives all of them back to the system.
void drop_kept();

}  // namespace sdx
