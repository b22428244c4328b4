#include "exec/sequence.h"

namespace sdx {

RunState Sequence::fresh_state() const {
  RunState state;
  state.slots.resize(size_t(spec_.n_slots));
  state.names.assign(size_t(spec_.n_names), -1);
  return state;
}

Outcome Sequence::bind_names(RunState& state) const {
  Outcome outcome;
  for (const SizeOf& s : spec_.sizes) {
    if (state.slots[size_t(s.slot)].view.dims[s.axis] == s.size) continue;
    outcome.fault = Fault::name;
    return outcome;
  }
  for (const NameOf& n : spec_.names) {
    const int64_t size = state.slots[size_t(n.slot)].view.dims[n.axis];
    int64_t& known = state.names[size_t(n.name)];
    if (known == -1) known = size;
    if (known == size) continue;
    outcome.fault = Fault::name;
    return outcome;
  }
  return outcome;
}

Outcome Sequence::run(RunState& state) const {
  Outcome outcome;
  for (size_t i = 0; i < spec_.items.size(); ++i) {
    const Item& item = spec_.items[i];
    outcome = item.segment != nullptr ? item.segment->run(state, int(i))
                                      : run_control(*item.control, state);
    if (outcome.fault != Fault::none) {
      outcome.segment = int(i);
      return outcome;
    }
    for (const NameOf& n : item.gives)
      state.names[size_t(n.name)] = state.slots[size_t(n.slot)].view.dims[n.axis];
    for (const int32_t slot : item.frees) state.slots[size_t(slot)] = Slot();
  }
  return outcome;
}

}  // namespace sdx
