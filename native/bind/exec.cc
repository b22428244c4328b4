// Registers the executor: Runnable and its results, block pools, and settings of threads.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/numpy_arrays.h"
#include "bind/register.h"
#include "bind/runnable.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;

// A block pool that Python owns. Blocks refer to pools by C++ pointers alone, so that releasing one
// needs no GIL.
struct BlockPoolHandle {
  explicit BlockPoolHandle(Caching caching) : pool(std::make_shared<BlockPool>(caching)) {}
  std::shared_ptr<BlockPool> pool;
};

void bind_pool(nb::module_& m) {
  nb::enum_<Caching>(m, "Caching", "What a block pool does with blocks that are released.")
      .value("NONE", Caching::none, "It frees them.")
      .value("BLOCKS", Caching::blocks, "It keeps them for requests of about their size.")
      .value("PAGES", Caching::pages, "It keeps their pages for requests of any size.");
  nb::class_<BlockPoolHandle>(m, "BlockPool", nb::is_weak_referenceable(),
                              "Memory for arenas and outputs, cached between runs.")
      .def(nb::init<Caching>(), "caching"_a)
      .def(
          "release_cached", [](BlockPoolHandle& p) { p.pool->release_cached(); },
          "Free all cached blocks now, and those in use when they are released.")
      .def_prop_ro("cached_bytes", [](const BlockPoolHandle& p) { return p.pool->cached_bytes(); })
      .def_prop_ro("cached_blocks",
                   [](const BlockPoolHandle& p) { return p.pool->cached_blocks(); })
      .def_prop_ro("live_blocks", [](const BlockPoolHandle& p) { return p.pool->live_blocks(); });
  m.def("cached_bytes", cached_bytes, "Bytes that all block pools of the process cache.");
}

void bind_results(nb::module_& m) {
  nb::enum_<Fault>(m, "Fault", "What ended a run early.")
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
      .def_ro("names", &Outcome::dim_sizes, "The sizes of all named dims.")
      .def_ro("bytes", &Outcome::bytes, "Requested bytes, for faults of memory.");
  nb::class_<RunResult>(m, "RunResult", "The result of a run.")
      .def_ro("outputs", &RunResult::outputs)
      .def_ro("names", &RunResult::dim_sizes, "The sizes of all named dims.")
      .def_ro("spans", &RunResult::spans,
              "(segment, step, begin, end, run, chain), if the run was profiled.")
      .def_ro("names_by_run", &RunResult::dim_sizes_by_run, "The sizes of named dims, by `run`.");
}

void init_runnable(Runnable* self, ProgramSpec& program, nb::list input_names, nb::list input_types,
                   nb::list output_types, std::vector<int32_t> output_dtypes, BlockPoolHandle& pool,
                   int threads, bool spins, int32_t spin_us, bool flushes_denormals,
                   bool stops_spinning, bool grows_in_place, int64_t limit_bytes,
                   nb::object keep_alive) {
  new (self) Runnable(
      std::move(program),
      {std::move(input_names), std::move(input_types), std::move(output_types),
       std::move(output_dtypes)},
      {{threads, spins, flushes_denormals, spin_us, stops_spinning}, grows_in_place, limit_bytes},
      pool.pool, std::move(keep_alive));
}

void bind_runnable(nb::module_& m) {
  nb::class_<Runnable>(m, "Runnable", "A compiled native program, ready to run.")
      .def("__init__", init_runnable, "program"_a, nb::kw_only(), "input_names"_a, "input_types"_a,
           "output_types"_a, "output_dtypes"_a, "pool"_a, "threads"_a, "spins"_a, "spin_us"_a,
           "flushes_denormals"_a, "stops_spinning"_a, "grows_in_place"_a, "limit_bytes"_a,
           "keep_alive"_a.none(),
           "Consumes the program. `keep_alive` owns the constants whose addresses it has.")
      .def("run_fast", &Runnable::run_fast, "feed"_a,
           nb::sig("def run_fast(self, feed: dict) -> list | Outcome | None"),
           "The outputs of a plain feed; None, before anything runs, if it needs the checked path.")
      .def("run_fast_into", &Runnable::run_fast_into, "feed"_a, "arrays"_a.none(),
           nb::sig("def run_fast_into(self, feed: dict, arrays: list | None) -> list | Outcome | "
                   "None"),
           "The same with arrays for outputs: an array that was written into is returned itself.")
      .def("run_fast_tensors", &Runnable::run_fast_tensors, "feed"_a, "exchange"_a,
           nb::sig("def run_fast_tensors(self, feed: dict, exchange: TensorExchange) -> list | "
                   "Outcome | None"),
           "The same as `run_fast` with tensors as inputs and outputs.")
      .def("run", &Runnable::run, "names"_a, "inputs"_a, "stop"_a.none(), "profiles"_a,
           "arrays"_a = nb::none(),
           nb::sig("def run(self, names: collections.abc.Sequence[int], inputs: list, stop: Stop | "
                   "None, profiles: bool, arrays: list | None = None) -> RunResult | Outcome"),
           "The outputs for validated values, or how the run failed.")
      .def("memory", &Runnable::memory, "names"_a,
           nb::sig("def memory(self, names: collections.abc.Sequence[int]) -> list[dict]"),
           "The memory plan of each segment for these sizes: lifetimes and offsets of all values.")
      .def("memory_of", &Runnable::memory_of, "number"_a, "names"_a,
           nb::sig("def memory_of(self, number: int, names: collections.abc.Sequence[int]) -> dict "
                   "| None"),
           "The same for one segment, in a body or not; None if there is no such segment.");
}

void bind_threads(nb::module_& m) {
  m.attr("max_threads") = kMaxThreads;
  m.def("usable_cpus", usable_cpus, "CPUs that the process may use, by affinity and cgroup.");
  m.def("flush_denormals", flush_denormals, "on"_a,
        "Set whether this thread treats denormals as zero; returns whether it did before.");
  m.def("set_affinities", set_affinities, "sets"_a, "Bind the workers of the thread pool to CPUs.");
}

}  // namespace

void bind_exec(nb::module_& m) {
  import_numpy();
  nb::class_<Stop>(m, "Stop", "A flag that any thread may raise to end runs.")
      .def(nb::init<>())
      .def_prop_rw(
          "raised", [](const Stop& s) { return s.raised.load(); },
          [](Stop& s, bool raised) { s.raised.store(raised); });
  bind_pool(m);
  bind_results(m);
  bind_runnable(m);
  bind_threads(m);
  m.def(
      "has_capacity", [](nb::handle object) { return has_capacity(object.ptr()); }, "object"_a,
      "Whether an object is an array with spare capacity that a run returned.");
  m.def("address", address_of, "array"_a, "The address of an array's bytes.");
}

}  // namespace sdx
