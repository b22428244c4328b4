#include "bind/runnable.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "bind/gil.h"
#include "bind/numpy_arrays.h"
#include "bind/strings.h"
#include "exec/cache_growth.h"
#include "exec/check.h"

namespace nb = nanobind;

namespace sdx {
namespace {

// Arena values of any element type may be stored in an output's block before the output is.
constexpr uintptr_t kOutputAlign = 16;

void copy_names(const std::vector<int64_t>& names, RunState& state) {
  std::copy_n(names.begin(), std::min(names.size(), state.dim_sizes.size()),
              state.dim_sizes.begin());
}

// Bytes from the first element to the end of the last, gaps included.
int64_t extent(const View& view) {
  int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.dims[i] - 1) * view.strides[i];
  return view.count() == 0 ? 0 : (last + 1) * size_of(view.dtype);
}

bool overlap(const Slot& a, const Slot& b) {
  return a.data < b.data + extent(b.view) && b.data < a.data + extent(a.view);
}

nb::dict to_dict(int number, const MemoryReport& report) {
  nb::list values, in_outputs, in_own, scratch;
  for (const ValueSpan& s : report.values) {
    if (s.output_slot >= 0)
      in_outputs.append(nb::make_tuple(s.value, s.bytes, s.start, s.end, s.offset, s.output_slot));
    else if (s.own_block >= 0)
      in_own.append(nb::make_tuple(s.value, s.bytes, s.start, s.end, s.offset, s.own_block));
    else
      values.append(nb::make_tuple(s.value, s.bytes, s.start, s.end, s.offset));
  }
  for (const ValueSpan& s : report.scratch)
    scratch.append(nb::make_tuple(s.start, s.bytes, s.own_block >= 0 ? -1 : s.offset));
  nb::dict made;
  made["number"] = number;
  made["steps"] = nb::cast(report.order);
  made["values"] = values;
  made["in_outputs"] = in_outputs;
  made["in_own_blocks"] = in_own;
  made["scratch"] = scratch;
  made["exports"] = nb::cast(report.exported);
  made["arena_bytes"] = report.arena_bytes;
  made["lower_bound"] = report.lower_bound;
  made["local_bytes"] = report.local_bytes;
  return made;
}

// By input of a program: whether a step of a segment updates it in place.
std::vector<char> updated_inputs(const ProgramSpec& spec) {
  std::vector<char> is_updated(spec.inputs.size(), 0);
  for (const ProgramItem& item : spec.items) {
    if (item.segment == nullptr) continue;
    const std::vector<ValueSpec>& values = item.segment->spec().values;
    for (const ValueSpec& value : values) {
      if (value.storage != Storage::updated) continue;
      const ValueSpec* source = &values[size_t(value.at)];
      while (source->storage == Storage::updated) source = &values[size_t(source->at)];
      for (size_t i = 0; i < spec.inputs.size(); ++i)
        if (spec.inputs[i] == source->at) is_updated[i] = 1;
    }
  }
  return is_updated;
}

// By output of a program: the input slot whose memory it may be given as its buffer, -1 for none.
std::vector<int32_t> extended_inputs(const ProgramSpec& spec) {
  std::vector<int32_t> extended(spec.outputs.size(), -1);
  for (const ProgramItem& item : spec.items)
    for (size_t i = 0; item.segment != nullptr && i < extended.size(); ++i)
      extended[i] = std::max(extended[i], extended_input(item.segment->spec(), spec.outputs[i]));
  return extended;
}

// Whether two contiguous slots are the same tensor in the same memory.
bool is_same(const Slot& a, const Slot& b) {
  const View &x = a.view, &y = b.view;
  return a.data == b.data && x.rank == y.rank && std::equal(x.dims, x.dims + x.rank, y.dims) &&
         std::equal(x.strides, x.strides + x.rank, y.strides);
}

}  // namespace

bool StopCheck::check() {
  if (stop_ != nullptr && stop_->raised.load(std::memory_order_relaxed)) return true;
  if (Clock::now() < next_) return false;
  next_ = Clock::now() + kPeriod;
  GilAcquire gil;
  interrupted_ = PyErr_CheckSignals() != 0;
  return interrupted_;
}

void FedArrays::release(int32_t slot) {
  const auto is_slot = [slot](int32_t other) { return other == slot; };
  // An input that is also an output is copied after the run.
  if (std::any_of(spec_.outputs.begin(), spec_.outputs.end(), is_slot)) return;
  for (size_t i = 0; i < spec_.inputs.size(); ++i)
    if (is_slot(spec_.inputs[i])) released_.push_back(std::move(arrays_[i]));
  const View& view = state_.slots[size_t(slot)].view;
  released_bytes_ += view.count() * size_of(view.dtype);
  if (released_bytes_ < kWorthDropping) return;
  released_bytes_ = 0;
  GilAcquire gil;
  released_.clear();
}

void FedArrays::restore(nb::dict& feed, const nb::list& names) const {
  for (size_t i = 0; i < arrays_.size(); ++i)
    if (arrays_[i].is_valid()) feed[names[i]] = arrays_[i];
}

Runnable::Runnable(ProgramSpec spec, Interface interface, Settings settings,
                   std::shared_ptr<BlockPool> pool, nb::object keep_alive)
    : keep_alive_(std::move(keep_alive)),
      input_names_(std::move(interface.input_names)),
      input_types_(std::move(interface.input_types)),
      output_types_(std::move(interface.output_types)),
      output_dtypes_(std::move(interface.output_dtypes)),
      threads_(settings.threads),
      grows_in_place_(settings.grows_in_place),
      pool_(std::move(pool)),
      limit_bytes_(settings.limit_bytes) {
  check(spec);
  if (input_names_.size() != spec.inputs.size() || input_types_.size() != spec.inputs.size() ||
      output_types_.size() != spec.outputs.size() || output_dtypes_.size() != spec.outputs.size())
    throw MalformedProgram(
        "the interface has another number of inputs or outputs than the program");
  // A slot may be read by several items; only those of a single segment have a known last reader.
  consumes_inputs_ = spec.items.size() == 1 && spec.items[0].segment != nullptr &&
                     spec.items[0].segment->spec().consumes_inputs;
  is_updated_ = updated_inputs(spec);
  extended_inputs_ = extended_inputs(spec);
  program_ = std::make_shared<const Program>(std::move(spec));
  if (threads_.threads < 1) threads_.threads = usable_cpus();
  ensure_threads(threads_.threads);
}

nb::object Runnable::run_fast(nb::dict feed) const {
  return run_feed(std::move(feed), nb::none(), consumes_inputs_, nullptr);
}

nb::object Runnable::run_fast_into(nb::dict feed, nb::object arrays) const {
  return run_feed(std::move(feed), std::move(arrays), false, nullptr);
}

nb::object Runnable::run_fast_tensors(nb::dict feed, const TensorExchange& exchange) const {
  for (size_t i = 0; i < output_dtypes_.size(); ++i)
    if (!is_numeric(i)) return nb::none();
  return run_feed(std::move(feed), nb::none(), consumes_inputs_, &exchange);
}

nb::object Runnable::run_feed(nb::dict feed, nb::object arrays, bool consumes,
                              const TensorExchange* exchange) const {
  if (feed.size() != input_names_.size()) return nb::none();
  StringArena strings(limit_bytes_);
  RunState state = new_state();
  state.strings = &strings;
  FedArrays fed(program_->spec(), state);  // another thread may change the dict during the run
  try {
    if (!set_inputs(feed, state, fed, exchange)) return nb::none();
  } catch (const std::bad_alloc&) {
    return nb::none();  // the checked path words the error
  }
  if (program_->bind_names(state).fault != Fault::none) return nb::none();
  if (!arrays.is_none()) offer_output_buffers(state, nb::cast<nb::list>(arrays));
  if (consumes) {
    feed.clear();
    state.release_input = &FedArrays::release_input;
    state.release_context = &fed;
  }
  StopCheck stop_check(nullptr);
  Outcome outcome = run_in(state, stop_check);
  if (stop_check.was_interrupted()) nb::raise_python_error();
  if (outcome.fault != Fault::none) {
    if (consumes) fed.restore(feed, input_names_);
    return nb::cast(std::move(outcome));
  }
  try {
    return exchange == nullptr ? outputs(state, arrays) : output_tensors(state, *exchange);
  } catch (const std::bad_alloc&) {
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_MemoryError)) throw;
  }
  outcome.fault = Fault::memory;
  return nb::cast(std::move(outcome));
}

nb::object Runnable::run(const std::vector<int64_t>& names, nb::list inputs, const Stop* stop,
                         bool profiles, nb::object arrays) const {
  const ProgramSpec& spec = program_->spec();
  StringArena strings(limit_bytes_);
  RunState state = new_state();
  state.strings = &strings;
  copy_names(names, state);
  std::vector<nb::object> owners;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    nb::handle array = inputs[i];
    if (set_input(array.ptr(), i, state)) continue;
    owners.push_back(contiguous(array.ptr()));  // a cache that grew along another axis has gaps
    if (!set_input(owners.back().ptr(), i, state))
      throw std::invalid_argument("input " + std::to_string(i) +
                                  " of a segment is not a contiguous array of its type and rank");
  }
  if (Outcome outcome = program_->bind_names(state); outcome.fault != Fault::none)
    return nb::cast(std::move(outcome));
  if (!arrays.is_none()) offer_output_buffers(state, nb::cast<nb::list>(arrays));
  Profile profile;
  if (profiles) state.profile = &profile;
  StopCheck stop_check(stop);
  Outcome outcome = run_in(state, stop_check);
  if (stop_check.was_interrupted()) nb::raise_python_error();
  if (outcome.fault != Fault::none) return nb::cast(std::move(outcome));
  nb::list spans;
  for (const StepTiming& t : profile.steps)
    spans.append(nb::make_tuple(t.segment, t.step, t.begin_ns, t.end_ns, t.run, t.chain));
  return nb::cast(RunResult{outputs(state, arrays), std::move(state.dim_sizes), std::move(spans),
                            std::move(profile.dim_sizes)});
}

nb::list Runnable::memory(const std::vector<int64_t>& names) const {
  RunState state = new_state();
  copy_names(names, state);
  nb::list reports;
  for (const ProgramItem& item : program_->spec().items) {
    if (item.segment == nullptr) continue;
    if (const auto report = item.segment->memory(state))
      reports.append(to_dict(item.segment->spec().number, *report));
  }
  return reports;
}

nb::object Runnable::memory_of(int number, const std::vector<int64_t>& names) const {
  const auto report = program_->memory(number, names);
  return report ? nb::object(to_dict(number, *report)) : nb::none();
}

RunState Runnable::new_state() const {
  RunState state = program_->new_state();
  state.threads = threads_;
  state.grows_in_place = grows_in_place_;
  state.pool = pool_.get();
  state.limit_bytes = limit_bytes_;
  return state;
}

Outcome Runnable::run_in(RunState& state, StopCheck& stop_check) const {
  GilRelease nogil;
  state.should_stop = &StopCheck::should_stop;
  state.stop_context = &stop_check;
  const bool flushed = threads_.flushes_denormals && flush_denormals(true);
  Outcome outcome = program_->run(state);
  if (threads_.flushes_denormals) flush_denormals(flushed);  // the caller's mode is its own
  if (threads_.stops_spinning) stop_spinning();
  pool_->end_run();
  return outcome;
}

// Puts the fed values into the input slots; false if anything about them is unusual. `fed` gets a
// reference to each.
bool Runnable::set_inputs(const nb::dict& feed, RunState& state, FedArrays& fed,
                          const TensorExchange* exchange) const {
  const size_t n = program_->spec().inputs.size();
  for (size_t i = 0; i < n; ++i) {
    PyObject* array = PyDict_GetItem(feed.ptr(), PyList_GET_ITEM(input_names_.ptr(), long(i)));
    if (array == nullptr) return false;
    if (exchange == nullptr) {
      if (!set_input(array, i, state)) return false;
      fed.add(array);
      continue;
    }
    const nb::object tensor = set_tensor(array, i, state, *exchange);
    if (!tensor.is_valid()) return false;
    fed.add(tensor.ptr());
  }
  return true;
}

// Puts a tensor into an input slot; the object whose bytes the slot views: the tensor, or a copy of
// one with gaps. Null if kernels cannot read it, and for inputs that they update.
nb::object Runnable::set_tensor(PyObject* tensor, size_t input, RunState& state,
                                const TensorExchange& exchange) const {
  if (is_updated_[input]) return {};
  const ProgramSpec& spec = program_->spec();
  Slot& slot = state.slots[size_t(spec.inputs[input])];
  nb::object owner = nb::borrow(tensor);
  if (!exchange.slot_of(tensor, spec.dtypes[input], slot)) {
    owner = exchange.contiguous(tensor);
    if (!exchange.slot_of(owner.ptr(), spec.dtypes[input], slot)) return {};
  }
  return slot.view.rank == spec.ranks[input] ? owner : nb::object();
}

// Puts an array into an input slot; false if kernels cannot read it as it is, or not write to one
// that they update, or its rank is not the one that the program was compiled for.
bool Runnable::set_input(PyObject* array, size_t input, RunState& state) const {
  const ProgramSpec& spec = program_->spec();
  Slot& slot = state.slots[size_t(spec.inputs[input])];
  const DType dtype = spec.dtypes[input];
  PyObject* descr = PyList_GET_ITEM(input_types_.ptr(), long(input));
  const bool is_set = dtype == DType::string
                          ? string_slot(array, *state.strings, slot)
                          : slot_of(array, {descr, dtype, spec.capacity_axes[input]}, slot);
  return is_set && slot.view.rank == spec.ranks[input] &&
         (!is_updated_[input] || is_writeable(array));
}

// Offers the caller's arrays to the run as memory for outputs, where they have the type, no gaps,
// and overlap neither what the run reads nor each other. A cache may be extended where it is.
void Runnable::offer_output_buffers(RunState& state, nb::list arrays) const {
  const ProgramSpec& spec = program_->spec();
  for (size_t i = 0; i < spec.outputs.size() && i < arrays.size(); ++i) {
    if (!is_numeric(i)) continue;
    nb::handle array = arrays[i];
    const ArrayType type{PyList_GET_ITEM(output_types_.ptr(), long(i)), DType(output_dtypes_[i]),
                         -1};
    Slot slot;
    if (array.is_none() || !is_writeable(array.ptr()) || !slot_of(array.ptr(), type, slot))
      continue;
    bool is_usable = reinterpret_cast<uintptr_t>(slot.data) % kOutputAlign == 0;
    for (const int32_t input : spec.inputs) {
      const Slot& read = state.slots[size_t(input)];
      const bool is_extended = input == extended_inputs_[i] && is_same(slot, read);
      is_usable = is_usable && (is_extended || !overlap(slot, read));
    }
    for (const OutputBuffer& other : state.output_buffers)
      is_usable = is_usable && !overlap(slot, {other.view, other.data, {}, {}});
    if (is_usable) state.output_buffers.push_back({spec.outputs[i], slot.view, slot.data});
  }
}

// Whether an output is an array of numbers; else it is strings, or dicts (ZipMap).
bool Runnable::is_numeric(size_t output) const {
  const auto dtype = DType(output_dtypes_[output]);
  return dtype != DType::none && dtype != DType::string;
}

// The outputs as Python objects: the caller's own array if the output was written into it, else a
// new one.
nb::list Runnable::outputs(const RunState& state, nb::object arrays) const {
  nb::list made;
  const std::vector<int32_t>& slots = program_->spec().outputs;
  for (size_t i = 0; i < slots.size(); ++i) {
    PyObject* type = PyList_GET_ITEM(output_types_.ptr(), long(i));
    if (!is_numeric(i)) {
      const Slot& slot = state.slots[size_t(slots[i])];
      made.append(PyTuple_Check(type) ? zip_map(slot, type) : string_array(slot));
      continue;
    }
    const Slot slot = unshared(i, state);
    const auto is_written_there = [&](const OutputBuffer& buffer) {
      return buffer.slot == slots[i] && buffer.data == slot.data;
    };
    if (std::any_of(state.output_buffers.begin(), state.output_buffers.end(), is_written_there))
      made.append(nb::cast<nb::list>(arrays)[i]);
    else
      made.append(array_of(slot, type));
  }
  return made;
}

nb::list Runnable::output_tensors(const RunState& state, const TensorExchange& exchange) const {
  nb::list made;
  for (size_t i = 0; i < output_dtypes_.size(); ++i)
    made.append(exchange.tensor_of(unshared(i, state)));
  return made;
}

// The slot of an output, copied if its bytes are the caller's, a constant's or another output's:
// arrays that are handed out share no memory.
Slot Runnable::unshared(size_t output, const RunState& state) const {
  const std::vector<int32_t>& slots = program_->spec().outputs;
  Slot slot = state.slots[size_t(slots[output])];
  bool is_shared = slot.block == nullptr;
  for (size_t j = 0; j < output; ++j)
    is_shared = is_shared || state.slots[size_t(slots[j])].data == slot.data;
  if (is_shared) {
    const size_t bytes = size_t(slot.view.count() * size_of(slot.view.dtype));
    std::shared_ptr<std::byte> copy = pool_->block(bytes);
    std::copy_n(slot.data, bytes, copy.get());
    slot.block = copy;
    slot.data = copy.get();
  }
  return slot;
}

}  // namespace sdx
