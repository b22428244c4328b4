// If, Loop and Scan. A body is a Program, run once per iteration with a RunState of its own;
// carried values move from one iteration's outputs to the next one's inputs, without a copy. Scan
// outputs are collected as separate blocks and copied together at the end, when their number is
// known.
#include <cstdio>
#include <cstring>
#include <new>

#include "exec/program.h"

namespace sdx {
namespace {

Outcome failed(const ControlNode& control, Fault fault, Status status = Status(),
               int64_t bytes = 0) {
  Outcome outcome;
  outcome.bytes = bytes;
  outcome.fault = fault;
  outcome.segment = control.number;
  outcome.status = status;
  return outcome;
}

const Slot* input_of(const ControlNode& control, size_t i, const RunState& state) {
  return i < control.inputs.size() && control.inputs[i] >= 0
             ? &state.slots[size_t(control.inputs[i])]
             : nullptr;
}

bool bool_of(const Slot& slot) { return *reinterpret_cast<const uint8_t*>(slot.data) != 0; }

int64_t int_of(const Slot& slot) {
  if (slot.view.dtype == DType::i32) return *reinterpret_cast<const int32_t*>(slot.data);
  return *reinterpret_cast<const int64_t*>(slot.data);
}

template <class T>
Slot scalar(DType dtype, T value, BlockPool& pool) {
  Slot slot;
  slot.view.dtype = dtype;
  slot.view.rank = 0;
  slot.block = pool.block(sizeof value);
  slot.data = slot.block.get();
  std::memcpy(slot.data, &value, sizeof value);
  return slot;
}

// A tensor as [outer, n, inner bytes] around one axis.
struct AxisSplit {
  int64_t outer, n, inner;
};

AxisSplit split_at(const View& view, int axis) {
  return {view.count(0, axis), view.dims[axis],
          view.count(axis + 1, view.rank) * size_of(view.dtype)};
}

// Slice `index` of a scan input, copied: kernels expect contiguous inputs.
Slot scan_slice(const Slot& whole, int axis, int64_t index, BlockPool& pool) {
  const AxisSplit a = split_at(whole.view, axis);
  Slot value;
  value.view.dtype = whole.view.dtype;
  value.view.rank = whole.view.rank - 1;
  for (int i = 0; i < value.view.rank; ++i) value.view.dims[i] = whole.view.dims[i + (i >= axis)];
  value.view.set_contiguous_strides();
  value.block = pool.block(size_t(a.outer * a.inner));
  value.data = value.block.get();
  for (int64_t o = 0; o < a.outer; ++o)
    std::memcpy(value.data + o * a.inner, whole.data + (o * a.n + index) * a.inner,
                size_t(a.inner));
  return value;
}

// Whether the values of two iterations can be combined; sizes along `free_axis` may differ.
bool have_equal_shape(const View& a, const View& b, int free_axis) {
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

// The shape of a scan output: the values of all iterations, stacked or concatenated.
Status scan_output_view(const ScanOutput& output, const std::vector<Slot>& values, View& whole) {
  View first;
  first.dtype = output.dtype;
  first.rank = output.rank;
  std::memcpy(first.dims, output.dims, sizeof first.dims);
  if (!values.empty()) first = values[0].view;
  if (values.empty() && output.needs_iterations)
    return Status::fail("the Loop ran no iterations: nothing to concatenate");
  int64_t axis_size = 0;
  for (const Slot& value : values) {
    axis_size += output.is_concatenated ? value.view.dims[output.axis] : 1;
    if (have_equal_shape(value.view, first, output.is_concatenated ? output.axis : -1)) continue;
    char a[64], b[64];
    write_shape(first, a, sizeof a);
    write_shape(value.view, b, sizeof b);
    return Status::fail("a scan output has shapes %s and %s in different iterations", a, b);
  }
  whole = first;
  whole.rank = first.rank + !output.is_concatenated;
  for (int i = output.axis + 1; i < whole.rank; ++i)
    whole.dims[i] = first.dims[i - !output.is_concatenated];
  whole.dims[output.axis] = axis_size;
  whole.set_contiguous_strides();
  return {};
}

// Copies the values of all iterations into a scan output.
void combine(const ScanOutput& output, const std::vector<Slot>& values, Slot& whole) {
  const AxisSplit a = split_at(whole.view, output.axis);
  int64_t at = 0;
  for (size_t p = 0; p < values.size(); ++p) {
    const Slot& value = values[output.is_reversed ? values.size() - 1 - p : p];
    const int64_t n = output.is_concatenated ? value.view.dims[output.axis] : 1;
    for (int64_t o = 0; o < a.outer; ++o)
      std::memcpy(whole.data + (o * a.n + at) * a.inner, value.data + o * n * a.inner,
                  size_t(n * a.inner));
    at += n;
  }
}

void set_output(const ControlNode& control, size_t i, Slot slot, RunState& state) {
  if (i < control.outputs.size() && control.outputs[i] >= 0)
    state.slots[size_t(control.outputs[i])] = std::move(slot);
}

// Sets the outputs: the carried values, then the scan outputs.
Outcome finish(const ControlNode& control, std::vector<Slot> carried,
               const std::vector<std::vector<Slot>>& collected, RunState& state) {
  const size_t n = carried.size();
  for (size_t i = 0; i < n; ++i) set_output(control, i, std::move(carried[i]), state);
  for (size_t i = 0; i < collected.size(); ++i) {
    Slot whole;
    const ScanOutput& output = control.scan_outputs[i];
    if (Status status = scan_output_view(output, collected[i], whole.view); !status.ok())
      return failed(control, Fault::step, status);
    const int64_t bytes = bytes_of(whole.view);
    const int64_t live_bytes = with_live_bytes(state, bytes);
    if (live_bytes > state.limit_bytes) return failed(control, Fault::limit, {}, live_bytes);
    whole.block = state.pool->block(size_t(bytes));
    whole.data = whole.block.get();
    combine(output, collected[i], whole);
    set_output(control, n + i, std::move(whole), state);
  }
  return {};
}

// Keeps the scan outputs of an iteration, its outputs from `first` on, until the end.
void collect(std::vector<Slot>& outputs, size_t first, std::vector<std::vector<Slot>>& collected,
             RunState& state) {
  for (size_t i = 0; i < collected.size(); ++i) {
    state.collected_bytes += bytes_of(outputs[first + i].view);
    collected[i].push_back(std::move(outputs[first + i]));
  }
}

bool is_stopped(const RunState& state) {
  return state.should_stop != nullptr && state.should_stop(state.stop_context);
}

Outcome run_branch(const ControlNode& control, RunState& state) {
  const Body& body = control.bodies[bool_of(*input_of(control, 0, state)) ? 0 : 1];
  std::vector<Slot> outputs;
  Outcome outcome = body.program->run_body(body, {}, state, outputs);
  if (outcome.fault != Fault::none) return outcome;
  for (size_t i = 0; i < outputs.size(); ++i) set_output(control, i, std::move(outputs[i]), state);
  return outcome;
}

Outcome run_loop(const ControlNode& control, RunState& state) {
  const Body& body = control.bodies[0];
  const Slot* trips = input_of(control, 0, state);
  const Slot* condition = input_of(control, 1, state);
  const int64_t max_trips = trips == nullptr ? INT64_MAX : int_of(*trips);
  bool condition_holds = condition == nullptr || bool_of(*condition);
  std::vector<Slot> carried, outputs;
  for (size_t i = 2; i < control.inputs.size(); ++i)
    carried.push_back(*input_of(control, i, state));
  std::vector<std::vector<Slot>> collected(control.scan_outputs.size());
  for (int64_t iteration = 0; iteration < max_trips && condition_holds; ++iteration) {
    if (is_stopped(state)) return failed(control, Fault::stopped);
    std::vector<Slot> inputs{scalar(DType::i64, iteration, *state.pool),
                             scalar(DType::boolean, uint8_t(condition_holds), *state.pool)};
    for (Slot& slot : carried) inputs.push_back(std::move(slot));
    Outcome outcome = body.program->run_body(body, std::move(inputs), state, outputs);
    if (outcome.fault != Fault::none) return outcome;
    condition_holds = bool_of(outputs[0]);
    for (size_t i = 0; i < carried.size(); ++i) carried[i] = std::move(outputs[1 + i]);
    collect(outputs, 1 + carried.size(), collected, state);
  }
  return finish(control, std::move(carried), collected, state);
}

Outcome run_scan(const ControlNode& control, RunState& state) {
  const Body& body = control.bodies[0];
  const size_t n_carried = control.inputs.size() - control.scan_inputs.size();
  std::vector<Slot> carried, outputs;
  for (size_t i = 0; i < n_carried; ++i) carried.push_back(*input_of(control, i, state));
  std::vector<std::vector<Slot>> collected(control.scan_outputs.size());
  const Slot& first = *input_of(control, n_carried, state);
  const int64_t trips = first.view.dims[control.scan_inputs[0].axis];
  for (int64_t iteration = 0; iteration < trips; ++iteration) {
    if (is_stopped(state)) return failed(control, Fault::stopped);
    std::vector<Slot> inputs;
    for (Slot& slot : carried) inputs.push_back(std::move(slot));
    for (size_t i = 0; i < control.scan_inputs.size(); ++i) {
      const ScanInput& scanned = control.scan_inputs[i];
      inputs.push_back(scan_slice(*input_of(control, n_carried + i, state), scanned.axis,
                                  scanned.is_reversed ? trips - 1 - iteration : iteration,
                                  *state.pool));
    }
    Outcome outcome = body.program->run_body(body, std::move(inputs), state, outputs);
    if (outcome.fault != Fault::none) return outcome;
    for (size_t i = 0; i < n_carried; ++i) carried[i] = std::move(outputs[i]);
    collect(outputs, n_carried, collected, state);
  }
  return finish(control, std::move(carried), collected, state);
}

}  // namespace

Outcome run_control(const ControlNode& control, RunState& state) {
  Outcome outcome = failed(control, Fault::memory);  // stays if an allocation throws
  try {
    switch (control.kind) {
      case ControlKind::branch: outcome = run_branch(control, state); break;
      case ControlKind::loop: outcome = run_loop(control, state); break;
      case ControlKind::scan: outcome = run_scan(control, state); break;
    }
  } catch (const std::bad_alloc&) {
  }
  state.collected_bytes = 0;
  return outcome;
}

}  // namespace sdx
