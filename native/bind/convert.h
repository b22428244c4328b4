// Conversion of decoded ONNX records (load/records.h) to Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string_view>

namespace sdx {

namespace nb = nanobind;

// A record as Python holds it: a pointer into a decoded file, with shared ownership of the whole.
template <class T>
class Ref {
 public:
  explicit Ref(std::shared_ptr<const T> record) : record_(std::move(record)) {}
  const T* operator->() const { return record_.get(); }
  const T& operator*() const { return *record_; }

  // A record inside this one, which keeps the file alive as this one does.
  template <class U>
  Ref<U> member(const U& inner) const {
    return Ref<U>(std::shared_ptr<const U>(record_, &inner));
  }

 private:
  std::shared_ptr<const T> record_;
};

// Takes a new reference from a C function, or raises the error that it set.
inline nb::object checked(PyObject* object) {
  if (!object) nb::raise_python_error();
  return nb::steal(object);
}

inline nb::object to_str(std::string_view s) {
  return checked(PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "strict"));
}

// For documentation and metadata: bytes that are not UTF-8 must not prevent a model from running.
inline nb::object to_str_lossy(std::string_view s) {
  return checked(PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace"));
}

inline nb::object to_bytes(std::string_view s) {
  return checked(PyBytes_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size())));
}

template <class Items, class F>
nb::object list_of(const Items& items, F&& convert) {
  nb::object list = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
  Py_ssize_t i = 0;
  for (const auto& item : items) PyList_SET_ITEM(list.ptr(), i++, convert(item).release().ptr());
  return list;
}

template <class Items, class F>
nb::object tuple_of(const Items& items, F&& convert) {
  nb::object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  Py_ssize_t i = 0;
  for (const auto& item : items) PyTuple_SET_ITEM(tuple.ptr(), i++, convert(item).release().ptr());
  return tuple;
}

template <class Entries>
nb::object string_pairs(const Entries& items) {
  return list_of(items, [](const auto& item) -> nb::object {
    return nb::make_tuple(to_str_lossy(item.first), to_str_lossy(item.second));
  });
}

template <class Owner, class Records>
nb::object records(const Ref<Owner>& owner, const Records& items) {
  return list_of(items, [&](const auto& item) { return nb::cast(owner.member(item)); });
}

}  // namespace sdx
