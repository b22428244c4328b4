// Runs kernels for tests on another machine: tests/remote.py writes calls to the standard input and
// reads the results from the standard output. Integers are int64 in the machine's byte order.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "exec/prepare.h"
#include "exec/single_call.h"
#include "kernels/registry.h"

namespace sdx {
namespace {

constexpr int64_t kGuard = 64;  // bytes before and after each tensor that no kernel may write
constexpr unsigned char kPattern = 0xA5;
enum Request : int64_t { kCall = 0, kResolve = 1, kEnd = 2 };

void read_bytes(void* to, int64_t n) {
  if (n > 0 && fread(to, 1, size_t(n), stdin) != size_t(n)) {
    fputs("the input ends in the middle of a call\n", stderr);
    exit(2);
  }
}

void write_bytes(const void* from, int64_t n) {
  if (n > 0 && fwrite(from, 1, size_t(n), stdout) != size_t(n)) exit(2);
}

int64_t read_int() {
  int64_t value = 0;
  read_bytes(&value, sizeof value);
  return value;
}

template <class T>
std::vector<T> read_list() {
  const int64_t n = read_int();
  std::vector<T> list(static_cast<size_t>(n));
  read_bytes(list.data(), int64_t(list.size() * sizeof(T)));
  return list;
}

void write_int(int64_t value) { write_bytes(&value, sizeof value); }

void write_text(const char* text) {
  const std::string all = text;
  write_int(int64_t(all.size()));
  write_bytes(all.data(), int64_t(all.size()));
}

// The bytes of a tensor between guards, at the same distance from a 64-byte boundary as on the
// machine that sent it: alignment may decide between code paths of a kernel.
struct GuardedBytes {
  std::unique_ptr<unsigned char[]> whole;
  unsigned char* first = nullptr;
  int64_t n_bytes = 0;

  void make(int64_t bytes, int64_t skew) {
    const int64_t all = bytes + 2 * kGuard + 128;
    whole = std::make_unique<unsigned char[]>(size_t(all));
    std::fill_n(whole.get(), all, kPattern);
    const auto start = reinterpret_cast<uintptr_t>(whole.get() + kGuard);
    first = whole.get() + kGuard + (64 - int64_t(start % 64)) % 64 + skew;
    n_bytes = bytes;
  }

  bool has_intact_guards() const {
    for (int64_t i = 1; i <= kGuard; ++i)
      if (first[-i] != kPattern || first[n_bytes + i - 1] != kPattern) return false;
    return true;
  }
};

struct Operands {
  std::vector<View> views;
  std::vector<GuardedBytes> bytes;
  std::vector<void*> at;
};

// An operand is sent as: type, dims, strides, offset of its first element in its bytes, their
// number, their distance from a 64-byte boundary, and the input that an output is computed in place
// of (-1: none); then, for inputs, the bytes.
Operands read_operands(bool has_bytes, const Operands* inputs) {
  Operands made;
  const auto n = size_t(read_int());
  made.bytes.resize(n);
  for (size_t i = 0; i < n; ++i) {
    View view;
    view.dtype = DType(read_int());
    const std::vector<int64_t> dims = read_list<int64_t>(), strides = read_list<int64_t>();
    const int64_t origin = read_int(), n_bytes = read_int(), skew = read_int(), same = read_int();
    made.bytes[i].make(n_bytes, skew);
    if (has_bytes) read_bytes(made.bytes[i].first, n_bytes);
    void* at = made.bytes[i].first + origin;
    if (same >= 0) at = inputs->at[size_t(same)];
    if (view.dtype == DType::none) {
      at = nullptr;
    } else {
      view.rank = int(dims.size());
      std::copy(dims.begin(), dims.end(), view.dims);
      std::copy(strides.begin(), strides.end(), view.strides);
      view.data = at;
    }
    made.views.push_back(view);
    made.at.push_back(at);
  }
  return made;
}

void answer(Request request) {
  const std::vector<char> name = read_list<char>();
  Operands in = read_operands(true, nullptr);
  Operands out = read_operands(false, &in);
  const std::vector<int64_t> ints = read_list<int64_t>();
  const std::vector<double> floats = read_list<double>();
  const int splits = int(read_int());
  const Call call = call_of(in.views, out.views, ints, floats);
  const Data data{in.at.data(), out.at.data(), nullptr, nullptr};
  const Kernel* kernel = find_kernel(*chosen_isa(), std::string_view(name.data(), name.size()));
  Status status;
  if (kernel == nullptr)
    status = Status::fail("there is no such kernel");
  else if (request == kResolve)
    status = kernel->resolve(call, data, out.views.data());
  else
    status = run_single_call(*kernel, call, data, splits);
  for (const Operands* operands : {&in, &out})
    for (const GuardedBytes& bytes : operands->bytes)
      if (!bytes.has_intact_guards()) status = Status::fail("the kernel wrote outside a tensor");
  write_text(status.text());
  if (request == kResolve) {
    for (const View& view : out.views) write_bytes(view.dims, view.rank * int64_t(sizeof(int64_t)));
    return;
  }
  for (size_t i = 0; i < out.at.size(); ++i) write_bytes(out.at[i], out.bytes[i].n_bytes);
}

}  // namespace
}  // namespace sdx

int main() {
  for (;;) {
    const auto request = sdx::Request(sdx::read_int());
    if (request == sdx::kEnd) return 0;
    sdx::answer(request);
    fflush(stdout);
  }
}
