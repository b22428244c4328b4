#include "exec/dependencies.h"

#include <algorithm>

namespace sdx {
namespace {

void sort_unique(std::vector<int32_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

// The value in whose bytes a value is stored.
int32_t base_of(const SegmentSpec& spec, int32_t id) {
  while (spec.values[size_t(id)].storage >= Storage::reshaped) id = spec.values[size_t(id)].at;
  return id;
}

// The value whose step must run before a value can be read: itself, or the one it views. A Concat
// slice is written by a step of its own, although its bytes are the Concat output's; so is the next
// version of an input that is updated in place.
int32_t written_value(const SegmentSpec& spec, int32_t id) {
  for (;; id = spec.values[size_t(id)].at) {
    const Storage storage = spec.values[size_t(id)].storage;
    if (storage < Storage::reshaped || storage >= Storage::concat_slice) return id;
  }
}

// Lets each step that updates an input run after all that read the version before.
void add_readers_of_updated(const SegmentSpec& spec, std::vector<std::vector<int32_t>>& preds) {
  std::vector<std::vector<int32_t>> updates(spec.values.size());  // by version: steps that end it
  bool has_any = false;
  for (size_t i = 0; i < spec.steps.size(); ++i)
    for (const int32_t id : spec.steps[i].outputs) {
      if (spec.values[size_t(id)].storage != Storage::updated) continue;
      updates[size_t(written_value(spec, spec.values[size_t(id)].at))].push_back(int32_t(i));
      has_any = true;
    }
  if (!has_any) return;
  for (size_t i = 0; i < spec.steps.size(); ++i)
    for (const int32_t id : spec.steps[i].inputs) {
      if (id < 0) continue;
      for (const int32_t update : updates[size_t(written_value(spec, id))])
        if (update != int32_t(i)) preds[size_t(update)].push_back(int32_t(i));
    }
  for (std::vector<int32_t>& steps : preds) sort_unique(steps);
}

}  // namespace

Dependencies::Dependencies(const SegmentSpec& spec)
    : bases(spec.values.size()),
      roots(spec.values.size(), -1),
      preds(spec.steps.size()),
      touches(spec.steps.size()) {
  std::vector<int32_t> writer(spec.values.size(), -1);  // by value: a step
  for (size_t i = 0; i < spec.values.size(); ++i) {
    bases[i] = base_of(spec, int32_t(i));
    if (spec.values[size_t(bases[i])].storage == Storage::arena) roots[i] = bases[i];
  }
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    for (const int32_t id : spec.steps[i].inputs) {
      if (id < 0) continue;
      const int32_t step = writer[size_t(written_value(spec, id))];
      if (step >= 0) preds[i].push_back(step);
      if (roots[size_t(id)] >= 0) touches[i].push_back(roots[size_t(id)]);
    }
    for (const int32_t id : spec.steps[i].outputs) {
      writer[size_t(id)] = int32_t(i);
      if (roots[size_t(id)] >= 0) touches[i].push_back(roots[size_t(id)]);
    }
    sort_unique(preds[i]);
    sort_unique(touches[i]);
  }
  add_readers_of_updated(spec, preds);
}

}  // namespace sdx
