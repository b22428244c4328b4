// Strings element by element, broadcast: compared, chosen, joined.
#include <initializer_list>

#include "kernels/text/rows.h"

namespace sdx::SDX_ISA::texting {
namespace {

constexpr int kMostOperands = 3;

struct PairArgs {
  int64_t count;
  Strided at[kMostOperands];
};

Status equal_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PairArgs*>(args);
  const Text *x = input<Text>(data, 0), *y = input<Text>(data, 1);
  each(a.count, begin, end,
       [&](int64_t i) { output<uint8_t>(data)[i] = is_same(x[a.at[0](i)], y[a.at[1](i)]); });
  return {};
}

Status where_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PairArgs*>(args);
  const uint8_t* chosen = input<uint8_t>(data, 0);
  each(a.count, begin, end, [&](int64_t i) {
    const int slot = chosen[a.at[0](i)] != 0 ? 1 : 2;
    output<Text>(data)[i] = input<Text>(data, slot)[a.at[slot](i)];
  });
  return {};
}

Status concat_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PairArgs*>(args);
  const Text *x = input<Text>(data, 0), *y = input<Text>(data, 1);
  int64_t bytes = 0;
  bool fits = true;
  each(a.count, begin, end, [&](int64_t i) {
    fits = fits && !__builtin_add_overflow(bytes, x[a.at[0](i)].size + y[a.at[1](i)].size, &bytes);
  });
  char* to = fits ? room_for(data, bytes) : nullptr;
  if (to == nullptr) return no_memory(bytes);
  each(a.count, begin, end, [&](int64_t i) {
    Text& made = output<Text>(data)[i];
    made = {to, 0};
    for (const Text& part : {x[a.at[0](i)], y[a.at[1](i)]}) {
      if (part.size > 0) memcpy(to, part.data, size_t(part.size));
      to += part.size;
    }
    made.size = to - made.data;
  });
  return {};
}

void add(const Call& call, Plan& plan, PhaseFn run) {
  auto* a = plan.make<PairArgs>();
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

// Operands: the condition, what is chosen where it holds, and where not.
Status where(const Call& call, Plan& plan) {
  add(call, plan, where_items);
  return {};
}

Status concat(const Call& call, Plan& plan) {
  add(call, plan, concat_items);
  return {};
}

}  // namespace sdx::SDX_ISA::texting
