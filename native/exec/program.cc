#include "exec/program.h"

#include <algorithm>

namespace sdx {

RunState Program::new_state() const {
  RunState state;
  state.slots.resize(size_t(spec_.n_slots));
  state.dim_sizes.assign(size_t(spec_.n_names), -1);
  for (const ConstantSlot& fixed : spec_.constants) {
    Slot& slot = state.slots[size_t(fixed.slot)];
    slot.view = fixed.view;
    slot.data = static_cast<std::byte*>(const_cast<void*>(fixed.view.data));
    slot.view.data =
        nullptr;  // View::data is for constants only; a slot may hold another value in the next run
  }
  return state;
}

std::optional<MemoryReport> Program::memory(int number, const std::vector<int64_t>& names) const {
  for (const ProgramItem& item : spec_.items) {
    if (item.segment != nullptr && item.segment->spec().number == number) {
      RunState state = new_state();
      std::copy_n(names.begin(), std::min(names.size(), state.dim_sizes.size()),
                  state.dim_sizes.begin());
      return item.segment->memory(std::move(state));
    }
    if (item.control == nullptr) continue;
    for (const Body& body : item.control->bodies)
      if (auto found = body.program->memory(number, names)) return found;
  }
  return std::nullopt;
}

Outcome Program::bind_names(RunState& state) const {
  Outcome outcome;
  for (const FixedDim& s : spec_.sizes) {
    if (state.slots[size_t(s.slot)].view.dims[s.axis] == s.size) continue;
    outcome.fault = Fault::name;
    outcome.index = s.slot;
    return outcome;
  }
  // The first input that has a name gives its size; all others must agree.
  for (const NamedDim& n : spec_.names) {
    const int64_t size = state.slots[size_t(n.slot)].view.dims[n.axis];
    int64_t& known = state.dim_sizes[size_t(n.name)];
    if (known == -1) known = size;
    if (known == size) continue;
    outcome.fault = Fault::name;
    outcome.index = n.slot;
    return outcome;
  }
  return outcome;
}

Outcome Program::run(RunState& state) const {
  Outcome outcome;
  for (const ProgramItem& item : spec_.items) {
    outcome =
        item.segment != nullptr ? item.segment->run(state) : run_control(*item.control, state);
    if (outcome.fault != Fault::none) {
      if (outcome.dim_sizes.empty()) outcome.dim_sizes = state.dim_sizes;
      return outcome;
    }
    for (const NamedDim& n : item.resolved_names)
      state.dim_sizes[size_t(n.name)] = state.slots[size_t(n.slot)].view.dims[n.axis];
    // Blocks go back to the pool as soon as their last reader is done.
    for (const int32_t slot : item.frees) state.slots[size_t(slot)] = Slot();
  }
  return outcome;
}

Outcome Program::run_body(const Body& body, std::vector<Slot> inputs, const RunState& outer,
                          std::vector<Slot>& outputs) const {
  RunState state = new_state();
  state.threads = outer.threads;
  state.pool = outer.pool;
  state.strings = outer.strings;
  state.limit_bytes = outer.limit_bytes;
  state.outer = &outer;
  state.should_stop = outer.should_stop;
  state.stop_context = outer.stop_context;
  state.profile = outer.profile;
  for (const auto& [outside, inside] : body.known_names)
    state.dim_sizes[size_t(inside)] = outer.dim_sizes[size_t(outside)];
  // The body's own inputs are moved in, so that a loop holds each carried value once.
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
