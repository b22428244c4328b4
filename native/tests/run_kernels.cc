// Runs kernel rows for tests on another machine: tests/remote.py writes calls to the standard input
// and reads what they made from the standard output. Numbers are int64 in the machine's order.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "exec/prepare.h"
#include "exec/single.h"
#include "kernels/registry.h"

namespace sdx {
namespace {

constexpr int64_t kGuard = 64;
constexpr unsigned char kPattern = 0xA5;
enum Ask : int64_t { kCall = 0, kResolve = 1, kEnd = 2 };

void read_bytes(void* to, int64_t n) {
  if (n > 0 && fread(to, 1, size_t(n), stdin) != size_t(n)) {
    fputs("the calls end too early\n", stderr);
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

// The bytes of a tensor, as far from a 64-byte line as on the other machine, between guards.
struct Room {
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

  bool has_guards() const {
    for (int64_t i = 1; i <= kGuard; ++i)
      if (first[-i] != kPattern || first[n_bytes + i - 1] != kPattern) return false;
    return true;
  }
};

struct Operands {
  std::vector<View> views;
  std::vector<Room> rooms;
  std::vector<void*> at;
};

// Type, dims, strides, where the origin lies in the bytes, their number and distance from a line,
// and the input that an output shares its bytes with (-1: none); then an input's bytes.
Operands read_operands(bool has_bytes, const Operands* inputs) {
  Operands made;
  const auto n = size_t(read_int());
  made.rooms.resize(n);
  for (size_t i = 0; i < n; ++i) {
    View view;
    view.dtype = DType(read_int());
    const std::vector<int64_t> dims = read_list<int64_t>(), strides = read_list<int64_t>();
    const int64_t origin = read_int(), bytes = read_int(), skew = read_int(), same = read_int();
    made.rooms[i].make(bytes, skew);
    if (has_bytes) read_bytes(made.rooms[i].first, bytes);
    void* at = made.rooms[i].first + origin;
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

void answer(Ask ask) {
  const std::vector<char> name = read_list<char>();
  Operands in = read_operands(true, nullptr);
  Operands out = read_operands(false, &in);
  const std::vector<int64_t> ints = read_list<int64_t>();
  const std::vector<double> floats = read_list<double>();
  const int parts = int(read_int());
  const Call call = call_of(in.views, out.views, ints, floats);
  const Data data{in.at.data(), out.at.data(), nullptr, nullptr};
  const Kernel* kernel = find_kernel(*chosen_isa(), std::string_view(name.data(), name.size()));
  Status status;
  if (kernel == nullptr)
    status = Status::fail("there is no such kernel");
  else if (ask == kResolve)
    status = kernel->resolve(call, data, out.views.data());
  else
    status = run_single(*kernel, call, data, parts);
  for (const Operands* operands : {&in, &out})
    for (const Room& room : operands->rooms)
      if (!room.has_guards()) status = Status::fail("wrote outside a tensor");
  write_text(status.text());
  if (ask == kResolve) {
    for (const View& view : out.views) write_bytes(view.dims, view.rank * int64_t(sizeof(int64_t)));
    return;
  }
  for (size_t i = 0; i < out.at.size(); ++i) write_bytes(out.at[i], out.rooms[i].n_bytes);
}

}  // namespace
}  // namespace sdx

int main() {
  for (;;) {
    const auto ask = sdx::Ask(sdx::read_int());
    if (ask == sdx::kEnd) return 0;
    sdx::answer(ask);
    fflush(stdout);
  }
}
