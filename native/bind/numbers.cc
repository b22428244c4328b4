#include "bind/numbers.h"

namespace sdx {
namespace {

// An attribute of numpy. The reference is leaked: a static could be destroyed after the
// interpreter.
nb::handle numpy_member(const char* name) {
  return nb::object(nb::module_::import_("numpy").attr(name)).release();
}

}  // namespace

nb::handle numpy_dtype(const char* name) {
  return nb::object(numpy_member("dtype")(name)).release();
}

nb::object array_over(nb::handle data, nb::handle dtype) {
  static const nb::handle from_buffer = numpy_member("frombuffer");
  return from_buffer(data, dtype);
}

}  // namespace sdx
