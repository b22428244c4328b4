// Elementwise string kernels with broadcasting: Equal, Where, StringConcat.
#include <initializer_list>

#include "kernels/text/kernels.h"

namespace sdx::SDX_ISA::texting {
namespace {

constexpr int kMaxOperands = 3;

struct ElementwiseArgs {
  int64_t count;
  Strided at[kMaxOperands];
};

Status equal_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ElementwiseArgs*>(args);
  const Text *x = input<Text>(data, 0), *y = input<Text>(data, 1);
  each(a.count, begin, end,
       [&](int64_t i) { output<uint8_t>(data)[i] = is_same(x[a.at[0](i)], y[a.at[1](i)]); });
  return {};
}

Status where_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ElementwiseArgs*>(args);
  const uint8_t* condition = input<uint8_t>(data, 0);
  each(a.count, begin, end, [&](int64_t i) {
    const int operand = condition[a.at[0](i)] != 0 ? 1 : 2;
    output<Text>(data)[i] = input<Text>(data, operand)[a.at[operand](i)];
  });
  return {};
}

// Measures first: the bytes of all results of an item are one allocation.
Status concat_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ElementwiseArgs*>(args);
  const Text *x = input<Text>(data, 0), *y = input<Text>(data, 1);
  int64_t bytes = 0;
  bool fits = true;
  each(a.count, begin, end, [&](int64_t i) {
    fits = fits && !__builtin_add_overflow(bytes, x[a.at[0](i)].size + y[a.at[1](i)].size, &bytes);
  });
  char* to = fits ? allocate_bytes(data, bytes) : nullptr;
  if (to == nullptr) return no_memory(bytes);
  each(a.count, begin, end, [&](int64_t i) {
    Text& result = output<Text>(data)[i];
    result = {to, 0};
    for (const Text& operand : {x[a.at[0](i)], y[a.at[1](i)]}) {
      if (operand.size > 0) memcpy(to, operand.data, size_t(operand.size));
      to += operand.size;
    }
    result.size = to - result.data;
  });
  return {};
}

void add(const Call& call, Plan& plan, PhaseFn run) {
  auto* a = plan.make<ElementwiseArgs>();
  a->count = call.out[0].count();
  for (int i = 0; i < call.n_in; ++i) a->at[i].set(call.in[i], call.out[0]);
  plan.args = a;
  plan.add(run, items_of(a->count), kPerItem * 10);
}

}  // namespace

Status equal(const Call& call, Plan& plan) {
  add(call, plan, equal_items);
  return {};
}

// Operands: the condition, the values where it holds, the values where it does not.
Status where(const Call& call, Plan& plan) {
  add(call, plan, where_items);
  return {};
}

Status concat(const Call& call, Plan& plan) {
  add(call, plan, concat_items);
  return {};
}

}  // namespace sdx::SDX_ISA::texting
