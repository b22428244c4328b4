// Sequences in Python: made of the specs in bind/specs.cc, run with the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/parts.h"
#include "bind/texts.h"
#include "exec/check.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;

// A flag that any thread may raise to end runs.
struct Stop {
  std::atomic<bool> raised{false};
};

// Asked between steps: has someone raised the flag, or pressed Ctrl-C? Signals are Python's, so the
// GIL is taken to look for them, a few times a second at most.
class Watch {
 public:
  explicit Watch(const Stop* stop) : stop_(stop), next_(Clock::now() + kPeriod) {}

  static bool should_stop(void* self) { return static_cast<Watch*>(self)->check(); }
  bool was_interrupted() const { return interrupted_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPeriod = std::chrono::milliseconds(50);

  bool check() {
    if (stop_ != nullptr && stop_->raised.load(std::memory_order_relaxed)) return true;
    if (Clock::now() < next_) return false;
    next_ = Clock::now() + kPeriod;
    GilAcquire gil;
    interrupted_ = PyErr_CheckSignals() != 0;
    return interrupted_;
  }

  const Stop* stop_;
  Clock::time_point next_;
  bool interrupted_ = false;
};

// What a run gave.
struct RunResult {
  nb::list outputs;
  Longs names;                      // the sizes of all names
  nb::list spans;                   // of profiles: (segment, step, begin, end, run, lane)
  std::vector<Longs> names_by_run;  // of profiles
};

// What only Python needs of a sequence: names and types of inputs and outputs.
struct Interface {
  nb::list input_names, input_types, output_types;
  Ints output_dtypes;
};

// How runs use the machine.
struct Settings {
  ThreadOptions threads;
  bool grows_in_place;
  int64_t limit_bytes;
};

// A sequence that is ready to run.
class Runnable {
 public:
  // `kept` owns the constants that the sequence has addresses of.
  Runnable(SequenceSpec spec, Interface interface, Settings settings, std::shared_ptr<Pool> pool,
           nb::object kept)
      : kept_(std::move(kept)),
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
      throw MalformedProgram("names and types for another number of inputs or outputs");
    sequence_ = std::make_shared<const Sequence>(std::move(spec));
    if (threads_.threads < 1) threads_.threads = usable_cpus();
    want_threads(threads_.threads);
  }

  // The fast path: the outputs of a plain feed, as a list; an Outcome where a step or a guard
  // failed; None, before anything has run, where the feed needs the checked path.
  nb::object quick(nb::dict feed) const { return quick_into(std::move(feed), nb::none()); }

  // The same with memory for outputs: for each an array, or None.
  nb::object quick_into(nb::dict feed, nb::object arrays) const {
    if (feed.size() != input_names_.size()) return nb::none();
    Texts texts(limit_bytes_);
    RunState state = fresh();
    state.texts = &texts;
    std::vector<nb::object> kept;  // another thread may change the dict while this one runs
    try {
      if (!take_all(feed, state, kept)) return nb::none();
    } catch (const std::bad_alloc&) {
      return nb::none();
    }
    if (sequence_->bind_names(state).fault != Fault::none) return nb::none();
    if (!arrays.is_none()) lend(state, nb::cast<nb::list>(arrays));
    Watch watch(nullptr);
    Outcome outcome = run_in(state, watch);
    if (watch.was_interrupted()) nb::raise_python_error();
    if (outcome.fault != Fault::none) return nb::cast(std::move(outcome));
    try {
      return outputs(state, arrays);
    } catch (const std::bad_alloc&) {
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_MemoryError)) throw;
    }
    outcome.fault = Fault::memory;
    return nb::cast(std::move(outcome));
  }

  // The checked path, for values that Python has looked at: a RunResult, or an Outcome where
  // something failed. `profiles` asks for the times of the steps.
  nb::object run(const Longs& names, nb::list inputs, const Stop* stop, bool profiles,
                 nb::object arrays) const {
    const SequenceSpec& spec = sequence_->spec();
    Texts texts(limit_bytes_);
    RunState state = fresh();
    state.texts = &texts;
    std::copy_n(names.begin(), std::min(names.size(), state.names.size()), state.names.begin());
    std::vector<nb::object> kept;
    for (size_t i = 0; i < spec.inputs.size(); ++i) {
      nb::handle array = inputs[i];
      if (take_ranked(array.ptr(), i, state)) continue;
      kept.push_back(contiguous(array.ptr()));  // a cache that grew along another axis has gaps
      if (!take_ranked(kept.back().ptr(), i, state))
        throw std::invalid_argument("input " + std::to_string(i) +
                                    " of a segment is no plain array of its type and rank");
    }
    if (Outcome outcome = sequence_->bind_names(state); outcome.fault != Fault::none)
      return nb::cast(std::move(outcome));
    if (!arrays.is_none()) lend(state, nb::cast<nb::list>(arrays));
    Moments moments;
    if (profiles) state.moments = &moments;
    Watch watch(stop);
    Outcome outcome = run_in(state, watch);
    if (watch.was_interrupted()) nb::raise_python_error();
    if (outcome.fault != Fault::none) return nb::cast(std::move(outcome));
    nb::list spans;
    for (const Moment& m : moments.steps)
      spans.append(nb::make_tuple(m.segment, m.step, m.begin_ns, m.end_ns, m.run, m.lane));
    return nb::cast(RunResult{outputs(state, arrays), std::move(state.names), std::move(spans),
                              std::move(moments.names)});
  }

  // What runs with these names take, by segment; those whose sizes are not known are left out.
  nb::list memory(const Longs& names) const {
    RunState state = fresh();
    std::copy_n(names.begin(), std::min(names.size(), state.names.size()), state.names.begin());
    nb::list made;
    for (const Item& item : sequence_->spec().items) {
      if (item.segment == nullptr) continue;
      if (const auto report = item.segment->memory(state))
        made.append(described(item.segment->spec().number, *report));
    }
    return made;
  }

  // The same of one segment, which may be in a body, whose names these are then; None if unknown.
  nb::object memory_of(int number, const Longs& names) const {
    const auto report = sequence_->memory(number, names);
    return report ? nb::object(described(number, *report)) : nb::none();
  }

 private:
  static nb::dict described(int number, const MemoryReport& report) {
    nb::list values;
    nb::list lent;
    for (const Span& s : report.values) {
      if (s.lent < 0)
        values.append(nb::make_tuple(s.value, s.bytes, s.start, s.end, s.offset));
      else
        lent.append(nb::make_tuple(s.value, s.bytes, s.start, s.end, s.offset, s.lent));
    }
    nb::dict made;
    made["number"] = number;
    made["steps"] = nb::cast(report.order);
    made["values"] = values;
    made["lent"] = lent;
    nb::list scratch;
    for (const Span& s : report.scratch) scratch.append(nb::make_tuple(s.start, s.bytes, s.offset));
    made["scratch"] = scratch;
    made["exports"] = nb::cast(report.exported);
    made["arena_bytes"] = report.arena_bytes;
    made["lower_bound"] = report.least_bytes;
    made["local_bytes"] = report.local_bytes;
    return made;
  }

  // Whether an output leaves as an array of numbers; else as strings, or dicts.
  bool is_array(size_t output) const {
    const auto dtype = DType(output_dtypes_[output]);
    return dtype != DType::none && dtype != DType::string;
  }

  // Puts what is fed into the slots of inputs; false where anything about it is unusual.
  bool take_all(const nb::dict& feed, RunState& state, std::vector<nb::object>& kept) const {
    const SequenceSpec& spec = sequence_->spec();
    kept.reserve(spec.inputs.size());
    for (size_t i = 0; i < spec.inputs.size(); ++i) {
      PyObject* array = PyDict_GetItem(feed.ptr(), PyList_GET_ITEM(input_names_.ptr(), long(i)));
      if (array == nullptr || !take_ranked(array, i, state)) return false;
      kept.push_back(nb::borrow(array));
    }
    return true;
  }

  // Puts an array into the slot of an input; false where it cannot be read as it is.
  bool take(PyObject* array, size_t input, RunState& state) const {
    const SequenceSpec& spec = sequence_->spec();
    Slot& slot = state.slots[size_t(spec.inputs[input])];
    if (spec.dtypes[input] == DType::string) return text_slot(array, *state.texts, slot);
    PyObject* descr = PyList_GET_ITEM(input_types_.ptr(), long(input));
    return slot_of(array, {descr, spec.dtypes[input], spec.room_axes[input]}, slot);
  }

  // The same for arrays of the rank that the program was made for.
  bool take_ranked(PyObject* array, size_t input, RunState& state) const {
    const SequenceSpec& spec = sequence_->spec();
    return take(array, input, state) &&
           state.slots[size_t(spec.inputs[input])].view.rank == spec.ranks[input];
  }

  RunState fresh() const {
    RunState state = sequence_->fresh_state();
    state.threads = threads_;
    state.grows_in_place = grows_in_place_;
    state.pool = pool_.get();
    state.limit_bytes = limit_bytes_;
    return state;
  }

  Outcome run_in(RunState& state, Watch& watch) const {
    GilRelease nogil;
    state.should_stop = &Watch::should_stop;
    state.stop_context = &watch;
    const bool flushed = threads_.flushes && flush_denormals(true);
    Outcome outcome = sequence_->run(state);
    if (threads_.flushes) flush_denormals(flushed);
    if (threads_.calms) calm_workers();
    pool_->end_run();
    return outcome;
  }

  static constexpr uintptr_t kAligned =
      16;  // values of any type may lie there until the output does

  // Offers the caller's arrays to the run as memory for outputs, as far as they can be that: of the
  // type, without gaps, and apart from all that the run reads and from each other.
  void lend(RunState& state, nb::list arrays) const {
    const SequenceSpec& spec = sequence_->spec();
    for (size_t i = 0; i < spec.outputs.size() && i < arrays.size(); ++i) {
      if (!is_array(i)) continue;
      nb::handle array = arrays[i];
      const Wanted type{PyList_GET_ITEM(output_types_.ptr(), long(i)), DType(output_dtypes_[i]),
                        -1};
      Slot slot;
      if (array.is_none() || !is_writeable(array.ptr()) || !slot_of(array.ptr(), type, slot))
        continue;
      bool is_apart = reinterpret_cast<uintptr_t>(slot.data) % kAligned == 0;
      for (const int32_t input : spec.inputs)
        is_apart = is_apart && !overlap(slot, state.slots[size_t(input)]);
      for (const Given& other : state.given)
        is_apart = is_apart && !overlap(slot, {other.view, other.data, {}, {}});
      if (is_apart) state.given.push_back({spec.outputs[i], slot.view, slot.data});
    }
  }

  static bool overlap(const Slot& a, const Slot& b) {
    return a.data < b.data + extent(b.view) && b.data < a.data + extent(a.view);
  }

  // Bytes from the first element to the end of the last, gaps included.
  static int64_t extent(const View& view) {
    int64_t last = 0;
    for (int i = 0; i < view.rank; ++i) last += (view.dims[i] - 1) * view.strides[i];
    return view.count() == 0 ? 0 : (last + 1) * size_of(view.dtype);
  }

  // The caller's own array where an output lies in it, else a new one.
  nb::list outputs(const RunState& state, nb::object arrays) const {
    nb::list made;
    const Ints& slots = sequence_->spec().outputs;
    for (size_t i = 0; i < slots.size(); ++i) {
      PyObject* type = PyList_GET_ITEM(output_types_.ptr(), long(i));
      if (!is_array(i)) {
        const Slot& slot = state.slots[size_t(slots[i])];
        made.append(PyTuple_Check(type) ? zipped(slot, type) : text_array(slot));
        continue;
      }
      const Slot slot = own(slots, i, state);
      const auto lies_there = [&](const Given& given) {
        return given.slot == slots[i] && given.data == slot.data;
      };
      if (std::any_of(state.given.begin(), state.given.end(), lies_there))
        made.append(nb::cast<nb::list>(arrays)[i]);
      else
        made.append(array_of(slot, type));
    }
    return made;
  }

  // An output's slot with bytes that are no one else's: not the caller's, nor another output's.
  Slot own(const Ints& slots, size_t i, const RunState& state) const {
    Slot slot = state.slots[size_t(slots[i])];
    bool is_shared = slot.block == nullptr;
    for (size_t j = 0; j < i; ++j)
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

  nb::object kept_;
  std::shared_ptr<const Sequence> sequence_;
  nb::list input_names_, input_types_, output_types_;
  Ints output_dtypes_;
  ThreadOptions threads_;
  bool grows_in_place_;
  std::shared_ptr<Pool> pool_;
  int64_t limit_bytes_;
};

// A pool in Python's hands. Blocks know pools by C++'s pointers alone, so that none needs the GIL
// to go back.
struct PoolHandle {
  explicit PoolHandle(bool keeps) : pool(std::make_shared<Pool>(keeps)) {}
  std::shared_ptr<Pool> pool;
};

}  // namespace

void bind_exec(nb::module_& m) {
  import_numpy();
  nb::class_<Stop>(m, "Stop", "A flag that any thread may raise to end runs.")
      .def(nb::init<>())
      .def_prop_rw(
          "raised", [](const Stop& s) { return s.raised.load(); },
          [](Stop& s, bool raised) { s.raised.store(raised); });
  nb::class_<PoolHandle>(m, "Pool", nb::is_weak_referenceable(),
                         "Memory for arenas and outputs, kept between runs if it is to.")
      .def(nb::init<bool>(), "keeps"_a)
      .def(
          "drop_kept", [](PoolHandle& p) { p.pool->drop_kept(); },
          "Gives what is kept back to the system, and what is in use when it is let go.")
      .def_prop_ro("kept_bytes", [](const PoolHandle& p) { return p.pool->kept_bytes(); })
      .def_prop_ro("kept_blocks", [](const PoolHandle& p) { return p.pool->kept_blocks(); })
      .def_prop_ro("live_blocks", [](const PoolHandle& p) { return p.pool->live_blocks(); });
  nb::enum_<Fault>(m, "Fault", "Why a run ended before its end.")
      .value("NONE", Fault::none)
      .value("GUARD", Fault::guard)
      .value("SIZE", Fault::size)
      .value("STEP", Fault::step)
      .value("MEMORY", Fault::memory)
      .value("STOPPED", Fault::stopped)
      .value("NAME", Fault::name)
      .value("LIMIT", Fault::limit);
  nb::class_<Outcome>(m, "Outcome", "How a run failed, at which guard or step of which segment.")
      .def_ro("fault", &Outcome::fault)
      .def_ro("segment", &Outcome::segment)
      .def_ro("index", &Outcome::index)
      .def_prop_ro("text", [](const Outcome& o) { return std::string(o.status.text()); })
      .def_ro("names", &Outcome::names, "The sizes of all names.")
      .def_ro("bytes", &Outcome::bytes, "That were wanted, for faults of memory.");
  nb::class_<RunResult>(m, "RunResult", "What a run gave.")
      .def_ro("outputs", &RunResult::outputs)
      .def_ro("names", &RunResult::names, "The sizes of all names.")
      .def_ro("spans", &RunResult::spans, "(segment, step, begin, end, run, lane), of profiles.")
      .def_ro("names_by_run", &RunResult::names_by_run, "Of profiles.");
  nb::class_<Runnable>(m, "Runnable", "A compiled sequence of segments, ready to run.")
      .def(
          "__init__",
          [](Runnable* self, SequenceSpec& sequence, nb::list input_names, nb::list input_types,
             nb::list output_types, Ints output_dtypes, PoolHandle& pool, int threads, bool spins,
             int32_t spin_us, bool flushes, bool calms, bool grows_in_place, int64_t limit_bytes,
             nb::object keeps) {
            new (self)
                Runnable(std::move(sequence),
                         {std::move(input_names), std::move(input_types), std::move(output_types),
                          std::move(output_dtypes)},
                         {{threads, spins, flushes, spin_us, calms}, grows_in_place, limit_bytes},
                         pool.pool, std::move(keeps));
          },
          "sequence"_a, nb::kw_only(), "input_names"_a, "input_types"_a, "output_types"_a,
          "output_dtypes"_a, "pool"_a, "threads"_a, "spins"_a, "spin_us"_a, "flushes"_a, "calms"_a,
          "grows_in_place"_a, "limit_bytes"_a, "keeps"_a.none(),
          "Takes the sequence over. `keeps` owns the constants that it has addresses of.")
      .def("quick", &Runnable::quick, "feed"_a,
           nb::sig("def quick(self, feed: dict) -> list | Outcome | None"),
           "The outputs of a plain feed; None, before anything runs, if it needs the checked path.")
      .def("quick_into", &Runnable::quick_into, "feed"_a, "arrays"_a.none(),
           nb::sig("def quick_into(self, feed: dict, arrays: list | None) -> list | Outcome | "
                   "None"),
           "The same with arrays for outputs: those that an output lies in come back.")
      .def("run", &Runnable::run, "names"_a, "inputs"_a, "stop"_a.none(), "profiles"_a,
           "arrays"_a = nb::none(),
           nb::sig("def run(self, names: collections.abc.Sequence[int], inputs: list, stop: Stop | "
                   "None, profiles: bool, arrays: list | None = None) -> RunResult | Outcome"),
           "The outputs of values that were checked, or how the run failed.")
      .def("memory", &Runnable::memory, "names"_a,
           nb::sig("def memory(self, names: collections.abc.Sequence[int]) -> list[dict]"),
           "What a run with these sizes takes, by segment: when each value is alive, and where.")
      .def("memory_of", &Runnable::memory_of, "number"_a, "names"_a,
           nb::sig("def memory_of(self, number: int, names: collections.abc.Sequence[int]) -> dict "
                   "| None"),
           "The same of one segment, in a body or not; None if there is no such segment.");
  m.def(
      "has_room", [](nb::handle object) { return has_room(object.ptr()); }, "object"_a,
      "Whether an object is an array that was handed out with room to grow.");
  m.def("address", address_of, "array"_a, "Where the bytes of an array lie.");
  m.attr("most_threads") = kMostThreads;
  m.def("usable_cpus", usable_cpus, "CPUs that the process may use, by affinity and cgroup.");
  m.def("flush_denormals", flush_denormals, "on"_a,
        "Whether this thread takes denormal numbers for zero from now on; the answer is whether it "
        "did before.");
  m.def("set_affinities", set_affinities, "sets"_a, "Binds the pool's workers to CPUs.");
  m.def("kept_bytes", kept_bytes, "Bytes that all pools keep for arenas and outputs to come.");
}

}  // namespace sdx
