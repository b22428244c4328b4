// The tables of all families and ISAs, from list.inc and the isas.inc that CMake writes.
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

[[maybe_unused]] bool has_base() { return true; }
#if defined(__x86_64__)
[[maybe_unused]] bool has_avx2() { return __builtin_cpu_supports("x86-64-v3"); }
[[maybe_unused]] bool has_avx512() { return __builtin_cpu_supports("x86-64-v4"); }
[[maybe_unused]] bool has_avx512vnni() {
  return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
bool has_bf16() { return __builtin_cpu_supports("avx512bf16"); }
#else
bool has_bf16() { return false; }
#endif

constexpr std::string_view kMultiplier = "avx512vnni";  // the ISA that bf16 is compiled in

const Isa* choose() {
  const char* wanted = std::getenv("SARDONYX_ISA");
  if (wanted != nullptr && *wanted != 0) {
    const Isa* isa = find_isa(wanted);
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

bool multiplies_bf16(const Isa& isa) { return isa.name == kMultiplier && has_bf16(); }

const Kernel* find_kernel(const Isa& isa, std::string_view name) {
  for (int f = 0; f < kFamilyCount; ++f) {
    for (int i = 0; i < isa.tables[f]->n; ++i) {
      const Kernel& row = isa.tables[f]->kernels[i];
      if (name != row.name) continue;
      const bool lacks = row.needs_bf16 && isa.name == kMultiplier && !has_bf16();
      return lacks && &isa != kIsas ? find_kernel((&isa)[-1], name) : &row;
    }
  }
  return nullptr;
}

}  // namespace sdx
