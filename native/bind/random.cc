// Draws from torch's generators, and the random streams of the process.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include "base/random_stream.h"
#include "bind/register.h"
#include "random/mt19937.h"

namespace nb = nanobind;

namespace sdx {
namespace {

using namespace nb::literals;

// The writeable bytes of a contiguous array, for a scope.
class Bytes {
 public:
  explicit Bytes(nb::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0)
      throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&buffer_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }
  size_t size() const { return size_t(buffer_.len); }
  bool is_of_bytes() const { return buffer_.itemsize == 1; }

 private:
  Py_buffer buffer_;
};

// The GIL is held, and no Python code runs, from reading the state until it is set: another Python
// thread would draw the same numbers in between.
void bernoulli(nb::object generator, double p, nb::handle out) {
  const Bytes drawn(out);
  if (!drawn.is_of_bytes()) throw nb::type_error("draws of one byte each are expected");
  const nb::object state = generator.attr("get_state")();
  {
    const Bytes bytes(state.attr("numpy")());
    draw_bernoulli(bytes.data(), bytes.size(), p, drawn.data(), drawn.size());
  }
  generator.attr("set_state")(state);
}

std::pair<uint64_t, uint64_t> numbers_of(RandomStream stream) { return {stream.key, stream.run}; }

}  // namespace

void bind_random(nb::module_& m) {
  m.def(
      "next_random_stream", [] { return numbers_of(next_random_stream()); },
      "Draw the stream of a random node without a seed: its key and number.");
  m.def(
      "random_stream", [] { return numbers_of(random_stream()); },
      "Return the stream that is drawn next.");
  m.def(
      "set_random_stream", [](uint64_t key, uint64_t run) { set_random_stream({key, run}); },
      "key"_a, "run"_a, "Set the stream that is drawn next.");
  m.def("bernoulli", bernoulli, "generator"_a, "p"_a, "out"_a,
        "Fill an array of booleans as `bernoulli_(p)` of torch does where it draws element by "
        "element; `generator` is a torch.Generator on the CPU.");
}

}  // namespace sdx
