// The kernel interface. A kernel has a name, the strides it accepts, and `prepare`, which runs when
// sizes are known and plans phases over ranges. A range counts items: the unit of work that a phase
// splits into, such as a row, a tile or a block of elements. The executor splits the range of a
// phase over threads and puts a barrier after it; any split must give the same bytes, so results do
// not depend on the number of threads. Kernels never allocate, throw or check shapes; faults of the
// data (an index out of range) are a Status.
//
//   find a kernel by name, dispatch by ISA   registry.h
//   the families of kernels                  list.inc
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "base/assert.h"
#include "base/status.h"
#include "base/text.h"
#include "base/view.h"

namespace sdx {

// A pointer to n elements; builds with assertions check indices.
template <class T>
struct Bounded {
  const T* data = nullptr;
  int n = 0;

  SDX_INLINE Bounded() = default;
  SDX_INLINE Bounded(const T* begin, int count) : data(begin), n(count) {}
  // Points to other elements, as many as before.
  SDX_INLINE Bounded& operator=(const T* begin) {
    data = begin;
    return *this;
  }
  template <class I>
  SDX_INLINE const T& operator[](I i) const {
    SDX_ASSERT(i >= 0 && int64_t(i) < n);
    return data[i];
  }
  SDX_INLINE operator const T*() const { return data; }
};

// One step of a program with concrete sizes: all that `prepare` may read. Only constants have data.
struct Call {
  Bounded<View> in;
  int n_in = 0;
  Bounded<View> out;
  int n_out = 0;
  Bounded<int64_t> ints;
  int n_ints = 0;
  Bounded<double> floats;
  int n_floats = 0;

  SDX_INLINE Call() = default;
  SDX_INLINE Call(Bounded<View> inputs, Bounded<View> outputs, Bounded<int64_t> integers,
                  Bounded<double> numbers)
      : in(inputs),
        n_in(inputs.n),
        out(outputs),
        n_out(outputs.n),
        ints(integers),
        n_ints(integers.n),
        floats(numbers),
        n_floats(numbers.n) {}
};

// Numbers that `resolve` computes and that the same step needs again when it runs, such as the
// indices that NonMaxSuppression selects.
struct ResolveCache {
  const int64_t* numbers = nullptr;
  int64_t count = 0;
  void* owner = nullptr;
  // For `resolve`: resizes the array, keeping what is in it; null when out of memory.
  int64_t* (*resize)(void* owner, int64_t count) = nullptr;
};

// Addresses of a step's operands and memory in one run.
struct Data {
  const void* const* in = nullptr;  // null for optional operands that are not given
  void* const* out = nullptr;
  std::byte* scratch = nullptr;  // shared by all threads of the step, 64-byte aligned, not cleared
  std::byte* local = nullptr;    // local memory of this thread, likewise
  int64_t round = 0;             // number of the round, for phases with several
  const StringAllocator* strings = nullptr;
  const ResolveCache* resolved = nullptr;  // null where nothing is cached
};

template <class T>
SDX_INLINE const T* input(const Data& data, int operand) {
  return static_cast<const T*>(data.in[operand]);
}
template <class T>
SDX_INLINE T* output(const Data& data, int number = 0) {
  return static_cast<T*>(data.out[number]);
}

// Runs items [begin, end) of a phase's range, at least one.
using PhaseFn = Status (*)(const void* args, const Data& data, int64_t begin, int64_t end);

struct Phase {
  PhaseFn run = nullptr;
  int64_t count = 0;   // items in the range
  int64_t work = 1;    // cost of one item, roughly in nanoseconds: small ranges stay on one thread
  int64_t rounds = 1;  // how often the whole range runs, with a barrier after each
};

constexpr int kMaxPhases = 4;

// Bytes that the executor reserves for the records of one `prepare`, so that they never fail: some
// for every call, and some for each operand and number of the call.
constexpr size_t kRecordBytes = 16384, kRecordBytesEach = 512;

// The result of `prepare`, kept as long as the sizes are in use.
struct Plan {
  Phase phases[kMaxPhases];
  int n_phases = 0;  // above kMaxPhases if a kernel adds too many: the executor rejects it
  int64_t scratch_bytes = 0;
  int64_t local_bytes = 0;
  const void* args = nullptr;  // the kernel's arguments, passed to every phase
  Status error;  // set by helpers of `prepare` that return no Status; the executor returns it

  void* (*allocate)(void* owner, size_t bytes) = nullptr;  // returns null without memory
  void* owner = nullptr;

  // Records of the kernel's arguments, freed with the plan without running destructors. Never null:
  // one, or one for each operand or number of the call, fits into the reserved bytes.
  template <class T>
  SDX_INLINE T* make(size_t n = 1) {
    static_assert(sizeof(T) <= kRecordBytes / 2);
    T* made = table<T>(n);
    SDX_ASSERT(made != nullptr);
    return made;
  }

  // A table whose length depends on sizes; null without memory. Kernels are compiled without
  // exceptions, so none may be thrown through `prepare`.
  template <class T>
  [[nodiscard]] SDX_INLINE T* table(size_t n) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, sizeof(T), &bytes)) return nullptr;
    T* made = static_cast<T*>(allocate(owner, bytes));
    for (size_t i = 0; made != nullptr && i < n; ++i) new (made + i) T();
    return made;
  }

  SDX_INLINE void add(PhaseFn run, int64_t count, int64_t work, int64_t rounds = 1) {
    SDX_ASSERT(n_phases < kMaxPhases);
    if (n_phases < kMaxPhases) phases[n_phases] = {run, count, work < 1 ? 1 : work, rounds};
    ++n_phases;
  }
};

// What `prepare` returns without memory for a table.
SDX_INLINE Status no_table() {
  return Status::fail("there is not enough memory for the kernel's tables of these sizes");
}

// Strides of inputs that a kernel accepts. The executor copies inputs that it does not.
enum class Accepts : uint8_t {
  contiguous,  // row-major, no gaps
  rows,        // the last axis has stride 1 (or one element), the others have any stride
  any,         // any strides, 0 and negative ones included
};

struct Kernel {
  const char* name;
  Accepts accepts;
  Status (*prepare)(const Call& call, Plan& plan);
  // For kernels whose output sizes depend on data: sets the dims of `out`, before `prepare`.
  Status (*resolve)(const Call& call, const Data& data, View* out) = nullptr;
  // Whether it uses AVX512_BF16, which not every CPU of the ISA avx512vnni has.
  bool needs_bf16 = false;
};

struct KernelTable {
  const Kernel* kernels;
  int n;
};

}  // namespace sdx

// Defines the table of a family, which tables.cc and registry.cc find by its name.
#define SDX_FAMILY(family, list)                                               \
  namespace sdx::SDX_ISA {                                                     \
  extern const KernelTable family##_kernels;                                   \
  const KernelTable family##_kernels{list, int(sizeof list / sizeof list[0])}; \
  }
