// Reports which build of the kernels runs, and for which instructions it was compiled: tests assert
// by it that SARDONYX_ISA had its effect.
#include <cstring>

#include "kernels/probe/kernels.h"

namespace sdx::SDX_ISA {
namespace {

#define SDX_TEXT(name) #name
#define SDX_NAME(name) SDX_TEXT(name)
constexpr const char* kNamespace = SDX_NAME(SDX_ISA);
#undef SDX_NAME
#undef SDX_TEXT

// The instruction set that the compiler's flags allow, independent of the namespace's name.
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
constexpr const char* kInstructions = "avx512vnni";
#elif defined(__AVX512F__)
constexpr const char* kInstructions = "avx512";
#elif defined(__AVX2__)
constexpr const char* kInstructions = "avx2";
#elif defined(__aarch64__)
constexpr const char* kInstructions = "neon";
#else
constexpr const char* kInstructions = "base";
#endif

// Each output is a byte array: the name, padded with zeros.
Status write_names(const void* args, const Data& data, int64_t, int64_t) {
  const auto* sizes = static_cast<const int64_t*>(args);
  const char* const texts[] = {kNamespace, kInstructions};
  for (int i = 0; i < 2; ++i) {
    const auto length = int64_t(strlen(texts[i]));
    char* to = output<char>(data, i);
    for (int64_t j = 0; j < sizes[i]; ++j) to[j] = j < length ? texts[i][j] : '\0';
  }
  return {};
}

}  // namespace

Status isa_name(const Call& call, Plan& plan) {
  auto* sizes = plan.make<int64_t>(2);
  for (int i = 0; i < 2; ++i) sizes[i] = call.out[i].count();
  plan.args = sizes;
  plan.add(write_names, 1, 1);
  return {};
}

}  // namespace sdx::SDX_ISA
