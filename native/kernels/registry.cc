// Dispatch by ISA: the kernel tables of all families and ISAs, from list.inc and the isas.inc that
// CMake writes, and the choice of an ISA at start. Each ISA is a static library in a namespace of
// its own (cmake/isa.cmake, tables.cc.in), so no code of a better ISA runs on a CPU without it.
#include "kernels/registry.h"

#include <cstdlib>

namespace sdx {

#define ISA(isa)                             \
  namespace isa {                            \
  extern const KernelTable* const kTables[]; \
  }
#include "isas.inc"
#undef ISA

namespace {

// CPU checks, named after the ISAs of isas.inc. x86-64-v3 is AVX2 + FMA + F16C, v4 adds AVX-512 F,
// BW, DQ, VL.
[[maybe_unused]] bool has_base() { return true; }
#if defined(__x86_64__) && defined(__clang__)  // not all versions know the levels
[[maybe_unused]] bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#elif defined(__x86_64__)
[[maybe_unused]] bool has_avx2() { return __builtin_cpu_supports("x86-64-v3"); }
[[maybe_unused]] bool has_avx512() { return __builtin_cpu_supports("x86-64-v4"); }
#endif
#if defined(__x86_64__)
[[maybe_unused]] bool has_avx512vnni() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
bool has_bf16() { return __builtin_cpu_supports("avx512bf16"); }
#else
bool has_bf16() { return false; }
#endif

constexpr std::string_view kBf16Isa = "avx512vnni";  // the ISA whose kernels use AVX512_BF16

// SARDONYX_ISA, or the last (best) supported ISA.
const Isa* choose() {
  const char* requested = std::getenv("SARDONYX_ISA");
  if (requested != nullptr && *requested != 0) {
    const Isa* isa = find_isa(requested);
    return isa != nullptr && isa->is_supported() ? isa : nullptr;
  }
  const Isa* best = nullptr;
  for (int i = 0; i < kIsaCount; ++i)
    if (kIsas[i].is_supported()) best = &kIsas[i];
  return best;
}

}  // namespace

#define ISA(isa) {#isa, has_##isa, isa::kTables},
const Isa kIsas[] = {
#include "isas.inc"
};
#undef ISA
const int kIsaCount = int(sizeof kIsas / sizeof kIsas[0]);

#define FAMILY(name) #name,
const char* const kFamilies[] = {
#include "kernels/list.inc"
};
#undef FAMILY
const int kFamilyCount = int(sizeof kFamilies / sizeof kFamilies[0]);

const Isa* chosen_isa() {
  static const Isa* const isa = choose();
  return isa;
}

const Isa* find_isa(std::string_view name) {
  for (int i = 0; i < kIsaCount; ++i)
    if (name == kIsas[i].name) return &kIsas[i];
  return nullptr;
}

bool multiplies_bf16(const Isa& isa) { return isa.name == kBf16Isa && has_bf16(); }

const Kernel* find_kernel(const Isa& isa, std::string_view name) {
  for (int f = 0; f < kFamilyCount; ++f) {
    for (int i = 0; i < isa.tables[f]->n; ++i) {
      const Kernel& kernel = isa.tables[f]->kernels[i];
      if (name != kernel.name) continue;
      const bool lacks = kernel.needs_bf16 && isa.name == kBf16Isa && !has_bf16();
      return lacks && &isa != kIsas ? find_kernel((&isa)[-1], name) : &kernel;
    }
  }
  return nullptr;
}

}  // namespace sdx
