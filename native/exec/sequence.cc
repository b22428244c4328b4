#include "exec/sequence.h"

#include <algorithm>

namespace sdx {

RunState Sequence::fresh_state() const {
  RunState state;
  state.slots.resize(size_t(spec_.n_slots));
  state.names.assign(size_t(spec_.n_names), -1);
  for (const FixedSlot& fixed : spec_.constants) {
    Slot& slot = state.slots[size_t(fixed.slot)];
    slot.view = fixed.view;
    slot.data = static_cast<std::byte*>(const_cast<void*>(fixed.view.data));
    slot.view.data = nullptr;  // a slot's value may be another in the next run
  }
  return state;
}

std::optional<MemoryReport> Sequence::memory(int number, const std::vector<int64_t>& names) const {
  for (const Item& item : spec_.items) {
    if (item.segment != nullptr && item.segment->spec().number == number) {
      RunState state = fresh_state();
      std::copy_n(names.begin(), std::min(names.size(), state.names.size()), state.names.begin());
      return item.segment->memory(std::move(state));
    }
    if (item.control == nullptr) continue;
    for (const Body& body : item.control->bodies)
      if (auto found = body.program->memory(number, names)) return found;
  }
  return std::nullopt;
}

Outcome Sequence::bind_names(RunState& state) const {
  Outcome outcome;
  for (const SizeOf& s : spec_.sizes) {
    if (state.slots[size_t(s.slot)].view.dims[s.axis] == s.size) continue;
    outcome.fault = Fault::name;
    outcome.index = s.slot;
    return outcome;
  }
  for (const NameOf& n : spec_.names) {
    const int64_t size = state.slots[size_t(n.slot)].view.dims[n.axis];
    int64_t& known = state.names[size_t(n.name)];
    if (known == -1) known = size;
    if (known == size) continue;
    outcome.fault = Fault::name;
    outcome.index = n.slot;
    return outcome;
  }
  return outcome;
}

Outcome Sequence::run(RunState& state) const {
  Outcome outcome;
  for (const Item& item : spec_.items) {
    outcome =
        item.segment != nullptr ? item.segment->run(state) : run_control(*item.control, state);
    if (outcome.fault != Fault::none) {
      if (outcome.names.empty()) outcome.names = state.names;
      return outcome;
    }
    for (const NameOf& n : item.gives)
      state.names[size_t(n.name)] = state.slots[size_t(n.slot)].view.dims[n.axis];
    for (const int32_t slot : item.frees) state.slots[size_t(slot)] = Slot();
  }
  return outcome;
}

Outcome Sequence::run_body(const Body& body, std::vector<Slot> inputs, const RunState& outer,
                           std::vector<Slot>& outputs) const {
  RunState state = fresh_state();
  state.threads = outer.threads;
  state.pool = outer.pool;
  state.texts = outer.texts;
  state.limit_bytes = outer.limit_bytes;
  state.outer = &outer;
  state.should_stop = outer.should_stop;
  state.stop_context = outer.stop_context;
  state.moments = outer.moments;
  for (const auto& [there, here] : body.known_names)
    state.names[size_t(here)] = outer.names[size_t(there)];
  const size_t n_own = inputs.size();
  for (size_t i = 0; i < n_own; ++i) state.slots[size_t(spec_.inputs[i])] = std::move(inputs[i]);
  for (size_t i = 0; i < body.captures.size(); ++i)
    state.slots[size_t(spec_.inputs[n_own + i])] = outer.slots[size_t(body.captures[i])];
  Outcome outcome = bind_names(state);
  if (outcome.fault == Fault::none) outcome = run(state);
  outputs.clear();
  if (outcome.fault != Fault::none) return outcome;
  for (const int32_t slot : spec_.outputs) outputs.push_back(state.slots[size_t(slot)]);
  return outcome;
}

}  // namespace sdx
