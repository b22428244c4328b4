// The kernels of every ISA in this build, and which of them this machine runs.
#pragma once

#include <string_view>

#include "kernels/kernel.h"

namespace sdx {

struct Isa {
  const char* name;
  bool (*is_supported)();
  const KernelTable* const* tables;  // one per family, in the order of list.inc
};

// From the plainest to the best.
extern const Isa kIsas[];
extern const int kIsaCount;
extern const char* const kFamilies[];
extern const int kFamilyCount;

// The ISA in use: the best one that the CPU has, or the one that SARDONYX_ISA names. Null where
// that names none of this build's, or one that the CPU lacks.
const Isa* chosen_isa();
const Isa* find_isa(std::string_view name);

// Whether an ISA has instructions for products of bf16, and the CPU too: some with the other ones
// of avx512vnni lack them.
bool multiplies_bf16(const Isa& isa);

// The row of this name, or null. Where the CPU lacks what the row needs (`Kernel::needs_bf16`), it
// is that of the plainer ISA before.
const Kernel* find_kernel(const Isa& isa, std::string_view name);

}  // namespace sdx
