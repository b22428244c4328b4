// A few words of memory that others write to, read to notice that they did.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "bind/register.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;
using Word = uint32_t;

constexpr int64_t kPerSpan = 8;

// The last words of equal parts of each span of memory.
class Samples {
 public:
  explicit Samples(const std::vector<std::pair<uintptr_t, int64_t>>& spans) {
    for (const auto& [address, bytes] : spans) {
      const int64_t words = bytes / int64_t(sizeof(Word)), n = std::min(kPerSpan, words);
      for (int64_t i = 1; i <= n; ++i)
        places_.push_back(address + uintptr_t(words * i / n - 1) * sizeof(Word));
    }
  }

  uint64_t digest() const {
    uint64_t hash = places_.size();
    for (const uintptr_t place : places_) {
      Word word;
      std::memcpy(&word, reinterpret_cast<const void*>(place), sizeof word);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }

 private:
  std::vector<uintptr_t> places_;
};

}  // namespace

void bind_samples(nb::module_& m) {
  nb::class_<Samples>(m, "Samples", "A few words of spans of memory.")
      .def(nb::init<std::vector<std::pair<uintptr_t, int64_t>>>(), "spans"_a,
           "Spans are (address, bytes).")
      .def("digest", &Samples::digest,
           "A number that is another one, almost surely, if a word changed. Reads the memory.");
}

}  // namespace sdx
