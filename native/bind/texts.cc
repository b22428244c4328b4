#include "bind/texts.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define NO_IMPORT_ARRAY
#define PY_ARRAY_UNIQUE_SYMBOL sardonyx_numpy
#include <nanobind/stl/vector.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text_index.h"
#include "bind/convert.h"
#include "bind/parts.h"
#include "load/utf8.h"

namespace sdx {
namespace {

using namespace nb::literals;

// Characters of one string: `width` bytes each, or UTF-8 if that is 0.
struct Characters {
  const void* data = nullptr;
  int64_t n = 0;
  int width = 0;
};

constexpr bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }
constexpr uint32_t kMostPoint = 0x10FFFF;

// Bytes of characters in UTF-8; -1 where one has no place there.
template <class C>
int64_t utf8_bytes(const C* s, int64_t n) {
  int64_t bytes = n;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t c = s[i];
    bytes += (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    if (sizeof(C) > 1 && (is_surrogate(c) || c > kMostPoint)) return -1;
  }
  return bytes;
}

int64_t utf8_bytes(const Characters& c) {
  switch (c.width) {
    case 0: return c.n;
    case 1: return utf8_bytes(static_cast<const uint8_t*>(c.data), c.n);
    case 2: return utf8_bytes(static_cast<const uint16_t*>(c.data), c.n);
    default: return utf8_bytes(static_cast<const uint32_t*>(c.data), c.n);
  }
}

char* put(char* to, uint32_t c) {
  const auto tail = [&](int shift) { *to++ = char(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    *to++ = char(c);
  } else if (c < 0x800) {
    *to++ = char(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    *to++ = char(0xE0 | (c >> 12));
    tail(6), tail(0);
  } else {
    *to++ = char(0xF0 | (c >> 18));
    tail(12), tail(6), tail(0);
  }
  return to;
}

// Writes characters up to `end`, where their bytes end unless the array was changed since these
// were counted: code that runs without the GIL may write to arrays of fixed width.
template <class C>
char* put_all(char* to, const char* end, const C* s, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t c = __atomic_load_n(s + i, __ATOMIC_RELAXED);
    const int64_t bytes = 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    if (end - to < bytes) return to;
    to = put(to, c);
  }
  return to;
}

char* put_all(char* to, const char* end, const Characters& c) {
  switch (c.width) {
    case 0: {
      const int64_t n = std::min<int64_t>(c.n, end - to);
      if (n > 0) std::memcpy(to, c.data, size_t(n));
      return to + n;
    }
    case 1: return put_all(to, end, static_cast<const uint8_t*>(c.data), c.n);
    case 2: return put_all(to, end, static_cast<const uint16_t*>(c.data), c.n);
    default: return put_all(to, end, static_cast<const uint32_t*>(c.data), c.n);
  }
}

bool characters_of(PyObject* object, bool takes_bytes, Characters& made) {
  if (object != nullptr && PyUnicode_Check(object)) {
    made.data = PyUnicode_DATA(object);
    made.n = PyUnicode_GET_LENGTH(object);
    made.width = PyUnicode_IS_ASCII(object) ? 0 : int(PyUnicode_KIND(object));
    return true;
  }
  if (!takes_bytes || object == nullptr || !PyBytes_Check(object)) return false;
  made = {PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object), 0};
  return is_utf8({static_cast<const char*>(made.data), size_t(made.n)});
}

// The strings of an array or a list, one by one. Lists, which attributes are, may have bytes.
class Strings {
 public:
  // Whether it is something that has strings, in native byte order and without gaps.
  static bool can_read(PyObject* object) {
    if (PyList_Check(object)) return true;
    if (!PyArray_Check(object)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    const int type = PyArray_TYPE(array);
    return (type == NPY_OBJECT || type == NPY_UNICODE || type == NPY_STRING) &&
           PyArray_ISCARRAY_RO(array);
  }

  explicit Strings(PyObject* object) {
    if (PyList_Check(object)) {
      count_ = PyList_GET_SIZE(object);
      objects_ = PySequence_Fast_ITEMS(object);
      is_list_ = true;
      return;
    }
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    count_ = PyArray_SIZE(array);
    item_bytes_ = PyArray_ITEMSIZE(array);
    data_ = PyArray_BYTES(array);
    if (PyArray_TYPE(array) == NPY_OBJECT) objects_ = static_cast<PyObject**>(PyArray_DATA(array));
    is_wide_ = PyArray_TYPE(array) == NPY_UNICODE;
  }

  int64_t count() const { return count_; }

  // False where there is no text at a place.
  bool at(int64_t i, Characters& made) const {
    if (objects_ != nullptr) return characters_of(objects_[i], is_list_, made);
    const char* item = data_ + i * item_bytes_;
    if (is_wide_) {
      const auto* wide = reinterpret_cast<const uint32_t*>(item);
      made = {item, item_bytes_ / 4, 4};
      while (made.n > 0 && wide[made.n - 1] == 0) --made.n;
      return true;
    }
    made = {item, item_bytes_, 0};
    while (made.n > 0 && item[made.n - 1] == 0) --made.n;
    return is_utf8({item, size_t(made.n)});
  }

  // Bytes of all in UTF-8; -1 where one is no text, which `odd` is then.
  int64_t bytes(int64_t& odd) const {
    int64_t total = 0;
    Characters c;
    for (odd = 0; odd < count_; ++odd) {
      const int64_t own = at(odd, c) ? utf8_bytes(c) : -1;
      if (own < 0 || __builtin_add_overflow(total, own, &total)) return -1;
    }
    return total;
  }

  // Records of all, whose bytes fill [to, end).
  void put_in(Text* made, char* to, const char* end) const {
    Characters c;
    for (int64_t i = 0; i < count_; ++i) {
      at(i, c);
      char* const next = put_all(to, end, c);
      made[i] = {to, next - to};
      to = next;
    }
  }

 private:
  int64_t count_ = 0, item_bytes_ = 0;
  PyObject** objects_ = nullptr;
  const char* data_ = nullptr;
  bool is_wide_ = false, is_list_ = false;
};

nb::object new_array(int type, int rank, const npy_intp* dims) {
  return checked(PyArray_SimpleNew(rank, const_cast<npy_intp*>(dims), type));
}

void* bytes_of(const nb::object& array) {
  return PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()));
}

// Strings as kernels read them: records, and behind them their bytes, where they stay.
nb::object texts(nb::object strings) {
  if (!Strings::can_read(strings.ptr()))
    throw nb::type_error("strings are a list, or an array without gaps");
  const Strings all(strings.ptr());
  int64_t odd = 0;
  const int64_t bytes = all.bytes(odd);
  if (bytes < 0) throw nb::value_error(("element " + std::to_string(odd) + " is no text").c_str());
  const npy_intp size = npy_intp(all.count() * int64_t(sizeof(Text)) + bytes);
  nb::object made = new_array(NPY_UINT8, 1, &size);
  auto* records = static_cast<Text*>(bytes_of(made));
  char* const to = reinterpret_cast<char*>(records + all.count());
  all.put_in(records, to, to + bytes);
  return made;
}

// Where the first element is that is no text, or None.
nb::object odd_text(nb::object strings) {
  if (!Strings::can_read(strings.ptr())) throw nb::type_error("this is no array of strings");
  const Strings all(strings.ptr());
  int64_t odd = 0;
  return all.bytes(odd) < 0 ? nb::cast(odd) : nb::none();
}

// Whether a block has so many records.
bool has_records(const nb::object& block, int64_t count) {
  return PyArray_Check(block.ptr()) && count >= 0 && count < int64_t(UINT32_MAX) &&
         PyArray_NBYTES(reinterpret_cast<PyArrayObject*>(block.ptr())) >=
             count * int64_t(sizeof(Text));
}

// The slots of a TextIndex over so many texts; of equal ones the last is found.
nb::object text_index(nb::object block, int64_t count) {
  if (!has_records(block, count)) throw nb::value_error("the block has fewer texts");
  npy_intp n_slots = 2;
  while (n_slots < 2 * count) n_slots *= 2;
  nb::object made = new_array(NPY_UINT64, 1, &n_slots);
  auto* slots = static_cast<uint64_t*>(bytes_of(made));
  std::memset(slots, 0, size_t(n_slots) * sizeof *slots);
  const auto* keys = static_cast<const Text*>(bytes_of(block));
  const uint64_t mask = uint64_t(n_slots) - 1;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t h = hash_of(keys[i]);
    uint64_t at = h & mask;
    while (slots[at] != 0 &&
           !(slots[at] >> 32 == h >> 32 && is_same(keys[uint32_t(slots[at]) - 1], keys[i])))
      at = (at + 1) & mask;
    slots[at] = (h >> 32 << 32) | uint64_t(i + 1);
  }
  return made;
}

// For each text the number of the one that the index finds for it.
nb::object text_numbers(nb::object block, int64_t count, nb::object index) {
  if (!has_records(block, count)) throw nb::value_error("the block has fewer texts");
  const npy_intp size = npy_intp(count);
  nb::object made = new_array(NPY_INT64, 1, &size);
  const auto* keys = static_cast<const Text*>(bytes_of(block));
  const TextIndex all{static_cast<const uint64_t*>(bytes_of(index)),
                      PyArray_SIZE(reinterpret_cast<PyArrayObject*>(index.ptr())), keys};
  for (int64_t i = 0; i < count; ++i) static_cast<int64_t*>(bytes_of(made))[i] = all.find(keys[i]);
  return made;
}

// Strings in Python. Records that show the same bytes, as those that come from a table of labels
// do, give the same object, if it was made not long ago.
class Decoder {
 public:
  explicit Decoder(int64_t count) {
    if (count >= kWorthwhile) kept_.resize(kKept);
  }

  // A new reference; null with an error set.
  PyObject* operator()(const Text& text) {
    if (kept_.empty()) return decoded(text);
    Kept& kept = kept_[mix_hash(reinterpret_cast<uintptr_t>(text.data)) % kKept];
    if (kept.object != nullptr && kept.text.data == text.data && kept.text.size == text.size)
      return Py_NewRef(kept.object);
    PyObject* made = decoded(text);
    kept = {text, made};
    return made;
  }

 private:
  static constexpr size_t kKept = 1024;
  static constexpr int64_t kWorthwhile = 64;  // strings for which it pays to remember some
  struct Kept {
    Text text{};
    PyObject* object = nullptr;  // alive as long as the array that it is in
  };

  static PyObject* decoded(const Text& text) {
    return PyUnicode_DecodeUTF8(text.data, Py_ssize_t(text.size), "replace");
  }

  std::vector<Kept> kept_;
};

}  // namespace

bool text_slot(PyObject* object, Texts& texts, Slot& slot) {
  if (!PyArray_Check(object) || !Strings::can_read(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_NDIM(array) > kMaxRank) return false;
  const Strings all(object);
  int64_t odd = 0;
  const int64_t bytes = all.bytes(odd);
  if (bytes < 0) return false;
  char* room = texts.allocate(all.count() * int64_t(sizeof(Text)) + bytes);
  if (room == nullptr) throw std::bad_alloc();
  auto* records = reinterpret_cast<Text*>(room);
  char* const to = reinterpret_cast<char*>(records + all.count());
  all.put_in(records, to, to + bytes);
  slot.view.dtype = DType::string;
  slot.view.rank = PyArray_NDIM(array);
  for (int i = 0; i < slot.view.rank; ++i) slot.view.dims[i] = PyArray_DIM(array, i);
  slot.view.pack();
  slot.data = reinterpret_cast<std::byte*>(room);
  return true;
}

nb::object text_array(const Slot& slot) {
  npy_intp dims[kMaxRank];
  for (int i = 0; i < slot.view.rank; ++i) dims[i] = slot.view.dims[i];
  nb::object made = new_array(NPY_OBJECT, slot.view.rank, dims);
  auto** objects = static_cast<PyObject**>(bytes_of(made));
  const auto* records = reinterpret_cast<const Text*>(slot.data);
  const int64_t count = slot.view.count();
  Decoder decode(count);
  for (int64_t i = 0; i < count; ++i) {
    PyObject* text = decode(records[i]);
    if (text == nullptr) nb::raise_python_error();
    Py_XSETREF(objects[i], text);
  }
  return made;
}

nb::object zipped(const Slot& slot, PyObject* keys) {
  const Py_ssize_t n_keys = PyTuple_GET_SIZE(keys);
  const View& view = slot.view;
  const int64_t n_rows = view.rank == 1 ? 1 : view.dims[0];
  const auto* x = reinterpret_cast<const float*>(slot.data);
  nb::object made = checked(PyList_New(n_rows));
  for (int64_t row = 0; row < n_rows; ++row) {
    nb::object dict = checked(PyDict_New());
    for (Py_ssize_t k = 0; k < n_keys; ++k) {
      nb::object number = checked(PyFloat_FromDouble(double(x[row * n_keys + k])));
      if (PyDict_SetItem(dict.ptr(), PyTuple_GET_ITEM(keys, k), number.ptr()) < 0)
        nb::raise_python_error();
    }
    PyList_SET_ITEM(made.ptr(), row, dict.release().ptr());
  }
  return made;
}

void bind_texts(nb::module_& m) {
  nb::class_<Texts>(m, "Texts", "Room for strings that single calls of rows make.")
      .def(nb::init<>());
  m.def(
      "read_texts",
      [](uintptr_t address, const std::vector<int64_t>& dims) {
        Slot slot;
        slot.view.rank = int(dims.size());
        std::copy(dims.begin(), dims.end(), slot.view.dims);
        slot.data = reinterpret_cast<std::byte*>(address);
        return text_array(slot);
      },
      "address"_a, "dims"_a,
      nb::sig("def read_texts(address: int, dims: list[int]) -> numpy.ndarray"),
      "The strings of records at an address, which a row has written.");
  m.def("texts", texts, "strings"_a, nb::sig("def texts(strings: object) -> numpy.ndarray"),
        "Strings, or bytes in UTF-8, as kernels read them: records, then the bytes that they are "
        "of. They stay where they are.");
  m.def("odd_text", odd_text, "strings"_a, nb::sig("def odd_text(strings: object) -> int | None"),
        "The first element of an array that is no text, or None.");
  m.def("text_index", text_index, "block"_a, "count"_a,
        nb::sig("def text_index(block: object, count: int) -> numpy.ndarray"),
        "The table by which kernels find one of so many texts; of equal ones the last.");
  m.def("text_numbers", text_numbers, "block"_a, "count"_a, "index"_a,
        nb::sig("def text_numbers(block: object, count: int, index: object) -> numpy.ndarray"),
        "For each text of a block the number of the one that its index finds.");
}

}  // namespace sdx
