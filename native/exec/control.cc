// If, Loop and Scan: bodies are sequences with states of their own.
#include <cstdio>
#include <cstring>
#include <new>

#include "exec/sequence.h"

namespace sdx {
namespace {

Outcome failed(const Control& control, Fault fault, Status status = Status(), int64_t bytes = 0) {
  Outcome outcome;
  outcome.bytes = bytes;
  outcome.fault = fault;
  outcome.segment = control.number;
  outcome.status = status;
  return outcome;
}

const Slot* given(const Control& control, size_t i, const RunState& state) {
  return i < control.inputs.size() && control.inputs[i] >= 0
             ? &state.slots[size_t(control.inputs[i])]
             : nullptr;
}

bool truth(const Slot& slot) { return *reinterpret_cast<const uint8_t*>(slot.data) != 0; }

int64_t number(const Slot& slot) {
  if (slot.view.dtype == DType::i32) return *reinterpret_cast<const int32_t*>(slot.data);
  return *reinterpret_cast<const int64_t*>(slot.data);
}

template <class T>
Slot scalar(DType dtype, T value, Pool& pool) {
  Slot slot;
  slot.view.dtype = dtype;
  slot.view.rank = 0;
  slot.block = pool.block(sizeof value);
  slot.data = slot.block.get();
  std::memcpy(slot.data, &value, sizeof value);
  return slot;
}

// A tensor seen as [outer, n, inner bytes] around one axis.
struct Around {
  int64_t outer, n, inner;
};

Around around(const View& view, int axis) {
  return {view.count(0, axis), view.dims[axis],
          view.count(axis + 1, view.rank) * size_of(view.dtype)};
}

Slot part_of(const Slot& whole, int axis, int64_t index, Pool& pool) {
  const Around a = around(whole.view, axis);
  Slot part;
  part.view.dtype = whole.view.dtype;
  part.view.rank = whole.view.rank - 1;
  for (int i = 0; i < part.view.rank; ++i) part.view.dims[i] = whole.view.dims[i + (i >= axis)];
  part.view.pack();
  part.block = pool.block(size_t(a.outer * a.inner));
  part.data = part.block.get();
  for (int64_t o = 0; o < a.outer; ++o)
    std::memcpy(part.data + o * a.inner, whole.data + (o * a.n + index) * a.inner, size_t(a.inner));
  return part;
}

// Whether two parts fit together; sizes along `free_axis` may differ.
bool fit(const View& a, const View& b, int free_axis) {
  for (int i = 0; i < a.rank; ++i)
    if (a.rank == b.rank && i != free_axis && a.dims[i] != b.dims[i]) return false;
  return a.rank == b.rank;
}

void write_shape(const View& view, char* text, size_t size) {
  size_t at = size_t(snprintf(text, size, "["));
  for (int i = 0; i < view.rank && at < size; ++i)
    at += size_t(snprintf(text + at, size - at, i == 0 ? "%lld" : ", %lld",
                          static_cast<long long>(view.dims[i])));
  if (at < size) snprintf(text + at, size - at, "]");
}

int64_t bytes_of(const View& view) { return view.count() * size_of(view.dtype); }

// The shape of all passes' parts as one tensor: stacked along a new axis, or joined along one.
Status stacked_view(const Stacked& how, const std::vector<Slot>& parts, View& whole) {
  View first;
  first.dtype = how.dtype;
  first.rank = how.rank;
  std::memcpy(first.dims, how.dims, sizeof first.dims);
  if (!parts.empty()) first = parts[0].view;
  if (parts.empty() && how.needs_parts) return Status::fail("there are no elements to join");
  int64_t joined = 0;
  for (const Slot& part : parts) {
    joined += how.is_joined ? part.view.dims[how.axis] : 1;
    if (fit(part.view, first, how.is_joined ? how.axis : -1)) continue;
    char a[64], b[64];
    write_shape(first, a, sizeof a);
    write_shape(part.view, b, sizeof b);
    return Status::fail("values collected over iterations have shapes %s and %s", a, b);
  }
  whole = first;
  whole.rank = first.rank + !how.is_joined;
  for (int i = how.axis + 1; i < whole.rank; ++i) whole.dims[i] = first.dims[i - !how.is_joined];
  whole.dims[how.axis] = joined;
  whole.pack();
  return {};
}

void stack(const Stacked& how, const std::vector<Slot>& parts, Slot& whole) {
  const Around a = around(whole.view, how.axis);
  int64_t at = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const Slot& part = parts[how.is_reversed ? parts.size() - 1 - p : p];
    const int64_t n = how.is_joined ? part.view.dims[how.axis] : 1;
    for (int64_t o = 0; o < a.outer; ++o)
      std::memcpy(whole.data + (o * a.n + at) * a.inner, part.data + o * n * a.inner,
                  size_t(n * a.inner));
    at += n;
  }
}

void put(const Control& control, size_t i, Slot slot, RunState& state) {
  if (i < control.outputs.size() && control.outputs[i] >= 0)
    state.slots[size_t(control.outputs[i])] = std::move(slot);
}

// Gives out the carried values, then what was collected.
Outcome finish(const Control& control, std::vector<Slot> carried,
               const std::vector<std::vector<Slot>>& collected, RunState& state) {
  const size_t n = carried.size();
  for (size_t i = 0; i < n; ++i) put(control, i, std::move(carried[i]), state);
  for (size_t i = 0; i < collected.size(); ++i) {
    Slot whole;
    const Stacked& how = control.stacked[i];
    if (Status status = stacked_view(how, collected[i], whole.view); !status.ok())
      return failed(control, Fault::step, status);
    const int64_t bytes = bytes_of(whole.view);
    const int64_t held = with_held(state, bytes);
    if (held > state.limit_bytes) return failed(control, Fault::limit, {}, held);
    whole.block = state.pool->block(size_t(bytes));
    whole.data = whole.block.get();
    stack(how, collected[i], whole);
    put(control, n + i, std::move(whole), state);
  }
  return {};
}

// Puts the outputs of a pass that are collected, those from `first` on, aside.
void collect(std::vector<Slot>& outputs, size_t first, std::vector<std::vector<Slot>>& collected,
             RunState& state) {
  for (size_t i = 0; i < collected.size(); ++i) {
    state.aside_bytes += bytes_of(outputs[first + i].view);
    collected[i].push_back(std::move(outputs[first + i]));
  }
}

bool is_stopped(const RunState& state) {
  return state.should_stop != nullptr && state.should_stop(state.stop_context);
}

Outcome run_branch(const Control& control, RunState& state) {
  const Body& body = control.bodies[truth(*given(control, 0, state)) ? 0 : 1];
  std::vector<Slot> outputs;
  Outcome outcome = body.program->run_body(body, {}, state, outputs);
  if (outcome.fault != Fault::none) return outcome;
  for (size_t i = 0; i < outputs.size(); ++i) put(control, i, std::move(outputs[i]), state);
  return outcome;
}

Outcome run_loop(const Control& control, RunState& state) {
  const Body& body = control.bodies[0];
  const Slot* trips = given(control, 0, state);
  const Slot* condition = given(control, 1, state);
  const int64_t most = trips == nullptr ? INT64_MAX : number(*trips);
  bool goes_on = condition == nullptr || truth(*condition);
  std::vector<Slot> carried, outputs;
  for (size_t i = 2; i < control.inputs.size(); ++i) carried.push_back(*given(control, i, state));
  std::vector<std::vector<Slot>> collected(control.stacked.size());
  for (int64_t turn = 0; turn < most && goes_on; ++turn) {
    if (is_stopped(state)) return failed(control, Fault::stopped);
    std::vector<Slot> inputs{scalar(DType::i64, turn, *state.pool),
                             scalar(DType::boolean, uint8_t(goes_on), *state.pool)};
    for (Slot& slot : carried) inputs.push_back(std::move(slot));
    Outcome outcome = body.program->run_body(body, std::move(inputs), state, outputs);
    if (outcome.fault != Fault::none) return outcome;
    goes_on = truth(outputs[0]);
    for (size_t i = 0; i < carried.size(); ++i) carried[i] = std::move(outputs[1 + i]);
    collect(outputs, 1 + carried.size(), collected, state);
  }
  return finish(control, std::move(carried), collected, state);
}

Outcome run_scan(const Control& control, RunState& state) {
  const Body& body = control.bodies[0];
  const size_t n_carried = control.inputs.size() - control.cuts.size();
  std::vector<Slot> carried, outputs;
  for (size_t i = 0; i < n_carried; ++i) carried.push_back(*given(control, i, state));
  std::vector<std::vector<Slot>> collected(control.stacked.size());
  const Slot& first = *given(control, n_carried, state);
  const int64_t turns = first.view.dims[control.cuts[0].axis];
  for (int64_t turn = 0; turn < turns; ++turn) {
    if (is_stopped(state)) return failed(control, Fault::stopped);
    std::vector<Slot> inputs;
    for (Slot& slot : carried) inputs.push_back(std::move(slot));
    for (size_t i = 0; i < control.cuts.size(); ++i) {
      const Cut& cut = control.cuts[i];
      inputs.push_back(part_of(*given(control, n_carried + i, state), cut.axis,
                               cut.is_reversed ? turns - 1 - turn : turn, *state.pool));
    }
    Outcome outcome = body.program->run_body(body, std::move(inputs), state, outputs);
    if (outcome.fault != Fault::none) return outcome;
    for (size_t i = 0; i < n_carried; ++i) carried[i] = std::move(outputs[i]);
    collect(outputs, n_carried, collected, state);
  }
  return finish(control, std::move(carried), collected, state);
}

}  // namespace

Outcome run_control(const Control& control, RunState& state) {
  Outcome outcome = failed(control, Fault::memory);
  try {
    switch (control.kind) {
      case ControlKind::branch: outcome = run_branch(control, state); break;
      case ControlKind::loop: outcome = run_loop(control, state); break;
      case ControlKind::scan: outcome = run_scan(control, state); break;
    }
  } catch (const std::bad_alloc&) {
  }
  state.aside_bytes = 0;
  return outcome;
}

}  // namespace sdx
