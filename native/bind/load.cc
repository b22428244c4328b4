// Registers the ONNX decoder. Decoding runs without the GIL; records refer to the buffer, which
// they keep alive.
#include <nanobind/nanobind.h>

#include "base/error.h"
#include "bind/convert.h"
#include "bind/gil.h"
#include "bind/register.h"
#include "load/decode.h"

namespace sdx {
namespace {

using namespace nb::literals;

// A view of a Python buffer; constructed and destroyed with the GIL held.
class Buffer {
 public:
  explicit Buffer(nb::handle source) {
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::string_view view() const {
    return {static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// A decoded file: its records, and the bytes that they refer to.
template <class T>
struct Document {
  explicit Document(nb::handle source) : buffer(source) {}
  Buffer buffer;
  T root;
};

template <class T>
Ref<T> decode(nb::handle source, T (*decoder)(std::string_view)) {
  auto document = std::make_shared<Document<T>>(source);
  {
    GilRelease nogil;
    document->root = decoder(document->buffer.view());
  }
  return Ref<T>(std::shared_ptr<const T>(document, &document->root));
}

}  // namespace

void bind_load(nb::module_& m) {
  nb::exception<DecodeError>(m, "DecodeError", PyExc_ValueError);
  bind_types(m);
  bind_tensors(m);
  bind_nodes(m);
  bind_models(m);

  m.def(
      "decode", [](nb::handle buffer) { return decode<Model>(buffer, decode_model); }, "buffer"_a,
      nb::sig("def decode(buffer: typing_extensions.Buffer) -> ModelRecord"),
      "Read an ONNX ModelProto; the records view the buffer and keep it alive.");
  m.def(
      "decode_tensor", [](nb::handle buffer) { return decode<Tensor>(buffer, decode_tensor); },
      "buffer"_a, nb::sig("def decode_tensor(buffer: typing_extensions.Buffer) -> TensorRecord"),
      "Read an ONNX TensorProto; the record views the buffer and keeps it alive.");
}

}  // namespace sdx
