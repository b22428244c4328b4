// What a kernel is: a row with a name, a `prepare` that runs when sizes are bound, and phases that
// run over ranges. The executor splits a phase's range over threads and puts a barrier after it;
// any split must give the same bytes.
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

// A pointer to so many elements; builds with assertions check the index.
template <class T>
struct Bounded {
  const T* data = nullptr;
  int n = 0;

  SDX_INLINE Bounded() = default;
  SDX_INLINE Bounded(const T* begin, int count) : data(begin), n(count) {}
  // Other elements, as many as before.
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

// One step with its sizes: all that `prepare` may look at. Only constants have data here.
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

// Where the bytes of a step lie in this run.
struct Data {
  const void* const* in = nullptr;  // null for operands that are not given
  void* const* out = nullptr;
  std::byte* scratch = nullptr;  // shared by all threads of the step, 64-byte aligned, not cleared
  std::byte* local = nullptr;    // this thread's own, likewise
  int64_t round = 0;             // of a phase that runs several times
  const StringAllocator* strings = nullptr;
  const ResolveCache* resolved = nullptr;  // null where nothing is cached
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

// Bytes that the executor has ready for the records of one `prepare`, whatever memory is left: some
// for every call, and some for each operand and number of the call.
constexpr size_t kRecordBytes = 16384, kRecordBytesEach = 512;

// What `prepare` decides, kept as long as the sizes are.
struct Plan {
  Phase phases[kMaxPhases];
  int n_phases = 0;  // more than kMaxPhases where a kernel adds too many: the executor refuses it
  int64_t scratch_bytes = 0;
  int64_t local_bytes = 0;
  const void* args = nullptr;  // the kernel's own; every phase gets it

  void* (*allocate)(void* owner, size_t bytes) = nullptr;  // null where there is no memory
  void* owner = nullptr;

  // Records of the kernel's arguments, freed with the plan and never destroyed. They are always
  // there: one, or one for each operand or number of the call, fit into what the executor has
  // ready.
  template <class T>
  SDX_INLINE T* make(size_t n = 1) {
    static_assert(sizeof(T) <= kRecordBytes / 2);
    T* made = table<T>(n);
    SDX_ASSERT(made != nullptr);
    return made;
  }

  // A table whose length depends on sizes; null where there is no memory for it. Kernels are
  // compiled without exceptions, so none may be thrown through `prepare`.
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

// What `prepare` returns where there is no memory for a table.
SDX_INLINE Status no_table() {
  return Status::fail("there is no memory for the tables that these sizes take");
}

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
  // Whether it is built with AVX512_BF16, which not every CPU of the ISA avx512vnni has.
  bool needs_bf16 = false;
};

struct KernelTable {
  const Kernel* kernels;
  int n;
};

}  // namespace sdx

// For kernel files: the table of a family, found by registry.cc under its name.
#define SDX_FAMILY(family, rows)                                               \
  namespace sdx::SDX_ISA {                                                     \
  extern const KernelTable family##_kernels;                                   \
  const KernelTable family##_kernels{rows, int(sizeof rows / sizeof rows[0])}; \
  }
