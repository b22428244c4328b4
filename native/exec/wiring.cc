#include "exec/wiring.h"

#include <algorithm>

namespace sdx {
namespace {

void sort_once(std::vector<int32_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

// The value whose bytes a value views, if it does; itself otherwise.
int32_t base_of(const SegmentSpec& spec, int32_t id) {
  while (spec.values[size_t(id)].storage >= Storage::reshaped) id = spec.values[size_t(id)].at;
  return id;
}

// The value that was made for a value to be there: itself, or what it views.
int32_t made_for(const SegmentSpec& spec, int32_t id) {
  for (;; id = spec.values[size_t(id)].at) {
    const Storage storage = spec.values[size_t(id)].storage;
    if (storage < Storage::reshaped || storage == Storage::part) return id;
  }
}

}  // namespace

Wiring::Wiring(const SegmentSpec& spec)
    : bases(spec.values.size()),
      roots(spec.values.size(), -1),
      preds(spec.steps.size()),
      touches(spec.steps.size()) {
  std::vector<int32_t> maker(spec.values.size(), -1);
  for (size_t i = 0; i < spec.values.size(); ++i) {
    bases[i] = base_of(spec, int32_t(i));
    if (spec.values[size_t(bases[i])].storage == Storage::arena) roots[i] = bases[i];
  }
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    for (const int32_t id : spec.steps[i].inputs) {
      if (id < 0) continue;
      const int32_t made_by = maker[size_t(made_for(spec, id))];
      if (made_by >= 0) preds[i].push_back(made_by);
      if (roots[size_t(id)] >= 0) touches[i].push_back(roots[size_t(id)]);
    }
    for (const int32_t id : spec.steps[i].outputs) {
      maker[size_t(id)] = int32_t(i);
      if (roots[size_t(id)] >= 0) touches[i].push_back(roots[size_t(id)]);
    }
    sort_once(preds[i]);
    sort_once(touches[i]);
  }
}

}  // namespace sdx
