#include "exec/memory_digest.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bind/gil.h"
#include "bind/register.h"
#include "exec/thread_pool.h"

namespace nb = nanobind;

namespace sdx {

using namespace nb::literals;

void bind_memory_digest(nb::module_& m) {
  nb::class_<MemoryDigest>(m, "MemoryDigest", "A digest of spans of memory that others write to.")
      .def(
          "__init__",
          [](MemoryDigest* self, const std::vector<std::pair<uintptr_t, int64_t>>& spans) {
            std::vector<std::pair<const void*, int64_t>> memory;
            memory.reserve(spans.size());
            for (const auto& [address, bytes] : spans)
              memory.emplace_back(reinterpret_cast<const void*>(address), bytes);
            new (self) MemoryDigest(memory);
          },
          "spans"_a, "Spans are (address, bytes); the caller keeps the memory alive.")
      .def(
          "compute",
          [](MemoryDigest& self, int threads) {
            GilRelease nogil;
            ensure_threads(threads);
            return self.compute(threads);
          },
          "threads"_a, "Return a digest of all bytes, the same for any number of threads.")
      .def_prop_ro("watched_bytes", &MemoryDigest::watched_bytes,
                   "How many bytes are watched for writes instead of being read.");
}

}  // namespace sdx
