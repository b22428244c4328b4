// What a kernel is: a row with a name, a `prepare` that runs when sizes are bound, and phases that
// run over ranges. The executor splits a phase's range over threads and puts a barrier after it;
// any split must give the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "base/status.h"
#include "base/text.h"
#include "base/view.h"

namespace sdx {

// One step with its sizes: all that `prepare` may look at. Only constants have data here.
struct Call {
  const View* in = nullptr;
  int n_in = 0;
  const View* out = nullptr;
  int n_out = 0;
  const int64_t* ints = nullptr;
  int n_ints = 0;
  const double* floats = nullptr;
  int n_floats = 0;
};

// Numbers that resolving comes upon and that the same step needs again when it runs.
struct Found {
  const int64_t* numbers = nullptr;
  int64_t count = 0;
  void* owner = nullptr;
  // Room for so many while resolving, with those that were there before; null without memory.
  int64_t* (*keep)(void* owner, int64_t count) = nullptr;
};

// Where the bytes of a step lie in this run.
struct Data {
  const void* const* in = nullptr;  // null for operands that are not given
  void* const* out = nullptr;
  std::byte* scratch = nullptr;  // shared by all threads of the step, 64-byte aligned, not cleared
  std::byte* local = nullptr;    // this thread's own, likewise
  int64_t round = 0;             // of a phase that runs several times
  const TextRoom* texts = nullptr;
  const Found* found = nullptr;  // null where nothing is kept
};

template <class T>
SDX_INLINE const T* input(const Data& data, int slot) {
  return static_cast<const T*>(data.in[slot]);
}
template <class T>
SDX_INLINE T* output(const Data& data, int slot = 0) {
  return static_cast<T*>(data.out[slot]);
}

// Items [begin, end) of a phase's range.
using PhaseFn = Status (*)(const void* args, const Data& data, int64_t begin, int64_t end);

struct Phase {
  PhaseFn run = nullptr;
  int64_t count = 0;   // items in the range
  int64_t work = 1;    // cost of one item, in nanoseconds or so: tiny ranges wake no thread
  int64_t rounds = 1;  // how often the whole range runs, one time after the other
};

constexpr int kMaxPhases = 4;

// What `prepare` decides, kept as long as the sizes are.
struct Plan {
  Phase phases[kMaxPhases];
  int n_phases = 0;
  int64_t scratch_bytes = 0;
  int64_t local_bytes = 0;
  const void* args = nullptr;  // the kernel's own; every phase gets it

  void* (*allocate)(void* owner, size_t bytes) = nullptr;
  void* owner = nullptr;

  // Room for the kernel's arguments, which is freed with the plan and never destroyed.
  template <class T>
  SDX_INLINE T* make(size_t n = 1) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
    T* made = static_cast<T*>(allocate(owner, n * sizeof(T)));
    for (size_t i = 0; i < n; ++i) new (made + i) T();
    return made;
  }

  SDX_INLINE void add(PhaseFn run, int64_t count, int64_t work, int64_t rounds = 1) {
    phases[n_phases++] = {run, count, work < 1 ? 1 : work, rounds};
  }
};

// How inputs may lie in memory. The executor copies what a row does not accept.
enum class Accepts : uint8_t {
  contiguous,  // row-major, no gaps
  rows,        // the last axis has stride 1 (or one element), the others have any stride
  any,         // any strides, 0 and negative ones included
};

struct Kernel {
  const char* name;
  Accepts accepts;
  Status (*prepare)(const Call& call, Plan& plan);
  // Rows whose output sizes depend on data say them here, before `prepare`: sets the dims of `out`.
  Status (*resolve)(const Call& call, const Data& data, View* out) = nullptr;
};

struct KernelTable {
  const Kernel* rows;
  int n;
};

}  // namespace sdx

// For kernel files: the table of a family, found by registry.cc under its name.
#define SDX_FAMILY(family, rows)                                               \
  namespace sdx::SDX_ISA {                                                     \
  extern const KernelTable family##_kernels;                                   \
  const KernelTable family##_kernels{rows, int(sizeof rows / sizeof rows[0])}; \
  }
