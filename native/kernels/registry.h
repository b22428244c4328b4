// Dispatch by ISA: the kernels of every ISA in this build, and the ISA that this machine runs.
#pragma once

#include <string_view>

#include "kernels/kernel.h"

namespace sdx {

struct Isa {
  const char* name;
  bool (*is_supported)();
  const KernelTable* const* tables;  // one per family, in the order of list.inc
};

// Ordered from the plainest to the best.
extern const Isa kIsas[];
extern const int kIsaCount;
extern const char* const kFamilies[];
extern const int kFamilyCount;

// The ISA in use: the best one that the CPU supports, or the one that SARDONYX_ISA names. Null if
// that is not in this build, or the CPU lacks it.
const Isa* chosen_isa();
const Isa* find_isa(std::string_view name);

// Whether an ISA and the CPU have bf16 dot products (AVX512_BF16); some CPUs with the rest of
// avx512vnni lack them.
bool multiplies_bf16(const Isa& isa);

// The kernel of this name, or null. If the CPU lacks what it needs (`Kernel::needs_bf16`), that of
// the next plainer ISA.
const Kernel* find_kernel(const Isa& isa, std::string_view name);

}  // namespace sdx
