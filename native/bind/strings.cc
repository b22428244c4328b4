#include "bind/strings.h"

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
#include "bind/register.h"
#include "load/utf8.h"

namespace sdx {
namespace {

using namespace nb::literals;

// Characters of one string: code points of `width` bytes each, or UTF-8 if that is 0.
struct Characters {
  const void* data = nullptr;
  int64_t n = 0;
  int width = 0;
};

constexpr bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }
constexpr uint32_t kMaxCodePoint = 0x10FFFF;

// The length of characters in UTF-8; -1 if one cannot be encoded (a surrogate).
template <class C>
int64_t utf8_bytes(const C* s, int64_t n) {
  int64_t bytes = n;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t c = s[i];
    bytes += (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    if (sizeof(C) > 1 && (is_surrogate(c) || c > kMaxCodePoint)) return -1;
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

char* encode(char* to, uint32_t c) {
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

// Encodes characters up to `end`. Their length was computed before, but code that runs without the
// GIL may write to numpy arrays in between: the bound is checked for every character, and each is
// read once (atomically).
template <class C>
char* encode_all(char* to, const char* end, const C* s, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t c = __atomic_load_n(s + i, __ATOMIC_RELAXED);
    const int64_t bytes = 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    if (end - to < bytes) return to;
    to = encode(to, c);
  }
  return to;
}

char* encode_all(char* to, const char* end, const Characters& c) {
  switch (c.width) {
    case 0: {
      const int64_t n = std::min<int64_t>(c.n, end - to);
      if (n > 0) std::memcpy(to, c.data, size_t(n));
      return to + n;
    }
    case 1: return encode_all(to, end, static_cast<const uint8_t*>(c.data), c.n);
    case 2: return encode_all(to, end, static_cast<const uint16_t*>(c.data), c.n);
    default: return encode_all(to, end, static_cast<const uint32_t*>(c.data), c.n);
  }
}

bool characters_of(PyObject* object, bool accepts_bytes, Characters& made) {
  if (object != nullptr && PyUnicode_Check(object)) {
    made.data = PyUnicode_DATA(object);
    made.n = PyUnicode_GET_LENGTH(object);
    made.width = PyUnicode_IS_ASCII(object) ? 0 : int(PyUnicode_KIND(object));
    return true;
  }
  if (!accepts_bytes || object == nullptr || !PyBytes_Check(object)) return false;
  made = {PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object), 0};
  return is_utf8({static_cast<const char*>(made.data), size_t(made.n)});
}

// The elements of an array or a list of strings. Lists, which come from attributes, may hold bytes.
class StringReader {
 public:
  // Whether it is a list, or a contiguous array of a string type in native byte order.
  static bool can_read(PyObject* object) {
    if (PyList_Check(object)) return true;
    if (!PyArray_Check(object)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    const int type = PyArray_TYPE(array);
    return (type == NPY_OBJECT || type == NPY_UNICODE || type == NPY_STRING) &&
           PyArray_ISCARRAY_RO(array);
  }

  explicit StringReader(PyObject* object) {
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

  // The characters of element i; false if it is not a string.
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

  // The total length in UTF-8. -1 if an element is not a string: then `bad` is its index.
  int64_t bytes(int64_t& bad) const {
    int64_t total = 0;
    Characters c;
    for (bad = 0; bad < count_; ++bad) {
      const int64_t own = at(bad, c) ? utf8_bytes(c) : -1;
      if (own < 0 || __builtin_add_overflow(total, own, &total)) return -1;
    }
    return total;
  }

  // Sets a Text for each element, with the bytes in [to, end).
  void encode_into(Text* made, char* to, const char* end) const {
    Characters c;
    for (int64_t i = 0; i < count_; ++i) {
      at(i, c);
      char* const next = encode_all(to, end, c);
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

// Strings as kernels read them: an array of Text records with the UTF-8 bytes after them. The
// records point into the array, which must not be copied or moved.
nb::object pack_strings(nb::object strings) {
  if (!StringReader::can_read(strings.ptr()))
    throw nb::type_error("expected a list of strings or a contiguous array of them");
  const StringReader all(strings.ptr());
  int64_t bad = 0;
  const int64_t bytes = all.bytes(bad);
  if (bytes < 0)
    throw nb::value_error(("element " + std::to_string(bad) + " is not a string").c_str());
  const npy_intp size = npy_intp(all.count() * int64_t(sizeof(Text)) + bytes);
  nb::object made = new_array(NPY_UINT8, 1, &size);
  auto* records = static_cast<Text*>(bytes_of(made));
  char* const to = reinterpret_cast<char*>(records + all.count());
  all.encode_into(records, to, to + bytes);
  return made;
}

// The index of the first element that is not a string, or None.
nb::object first_non_string(nb::object strings) {
  if (!StringReader::can_read(strings.ptr()))
    throw nb::type_error("expected a contiguous array of strings");
  const StringReader all(strings.ptr());
  int64_t bad = 0;
  return all.bytes(bad) < 0 ? nb::cast(bad) : nb::none();
}

// Whether an array of pack_strings has at least `count` records.
bool has_records(const nb::object& block, int64_t count) {
  return PyArray_Check(block.ptr()) && count >= 0 && count < int64_t(UINT32_MAX) &&
         PyArray_NBYTES(reinterpret_cast<PyArrayObject*>(block.ptr())) >=
             count * int64_t(sizeof(Text));
}

// The slots of a TextIndex over the first `count` strings; of equal ones the last is found.
nb::object string_index(nb::object block, int64_t count) {
  if (!has_records(block, count)) throw nb::value_error("the block has fewer strings");
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

// By string, the index of the one that a lookup of it finds: the last of equal ones.
nb::object string_numbers(nb::object block, int64_t count, nb::object index) {
  if (!has_records(block, count)) throw nb::value_error("the block has fewer strings");
  const npy_intp size = npy_intp(count);
  nb::object made = new_array(NPY_INT64, 1, &size);
  const auto* keys = static_cast<const Text*>(bytes_of(block));
  const TextIndex all{static_cast<const uint64_t*>(bytes_of(index)),
                      PyArray_SIZE(reinterpret_cast<PyArrayObject*>(index.ptr())), keys};
  for (int64_t i = 0; i < count; ++i) static_cast<int64_t*>(bytes_of(made))[i] = all.find(keys[i]);
  return made;
}

// Decodes Text records to Python strings. Records with the same address, as labels from a table
// have, give the same object if it is still in a small direct-mapped cache: decoding is most of the
// cost.
class StringDecoder {
 public:
  explicit StringDecoder(int64_t count) {
    if (count >= kMinCount) cache_.resize(kCacheSize);
  }

  // A new reference; null with an error set.
  PyObject* operator()(const Text& text) {
    if (cache_.empty()) return decoded(text);
    CacheEntry& entry = cache_[mix_hash(reinterpret_cast<uintptr_t>(text.data)) % kCacheSize];
    if (entry.object != nullptr && entry.text.data == text.data && entry.text.size == text.size)
      return Py_NewRef(entry.object);
    PyObject* made = decoded(text);
    entry = {text, made};
    return made;
  }

 private:
  static constexpr size_t kCacheSize = 1024;
  static constexpr int64_t kMinCount = 64;  // strings for which the cache pays off
  struct CacheEntry {
    Text text{};
    PyObject* object = nullptr;  // borrowed: the array under construction holds it
  };

  static PyObject* decoded(const Text& text) {
    return PyUnicode_DecodeUTF8(text.data, Py_ssize_t(text.size), "replace");
  }

  std::vector<CacheEntry> cache_;
};

}  // namespace

bool string_slot(PyObject* object, StringArena& arena, Slot& slot) {
  if (!PyArray_Check(object) || !StringReader::can_read(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_NDIM(array) > kMaxRank) return false;
  const StringReader all(object);
  int64_t bad = 0;
  const int64_t bytes = all.bytes(bad);
  if (bytes < 0) return false;
  char* block = arena.allocate(all.count() * int64_t(sizeof(Text)) + bytes);
  if (block == nullptr) throw std::bad_alloc();
  auto* records = reinterpret_cast<Text*>(block);
  char* const to = reinterpret_cast<char*>(records + all.count());
  all.encode_into(records, to, to + bytes);
  slot.view.dtype = DType::string;
  slot.view.rank = PyArray_NDIM(array);
  for (int i = 0; i < slot.view.rank; ++i) slot.view.dims[i] = PyArray_DIM(array, i);
  slot.view.set_contiguous_strides();
  slot.data = reinterpret_cast<std::byte*>(block);
  return true;
}

nb::object string_array(const Slot& slot) {
  npy_intp dims[kMaxRank];
  for (int i = 0; i < slot.view.rank; ++i) dims[i] = slot.view.dims[i];
  nb::object made = new_array(NPY_OBJECT, slot.view.rank, dims);
  auto** objects = static_cast<PyObject**>(bytes_of(made));
  const auto* records = reinterpret_cast<const Text*>(slot.data);
  const int64_t count = slot.view.count();
  StringDecoder decode(count);
  for (int64_t i = 0; i < count; ++i) {
    PyObject* text = decode(records[i]);
    if (text == nullptr) nb::raise_python_error();
    Py_XSETREF(objects[i], text);
  }
  return made;
}

nb::object zip_map(const Slot& slot, PyObject* keys) {
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

void bind_strings(nb::module_& m) {
  nb::class_<StringArena>(m, "StringArena", "Memory for strings that single kernel calls produce.")
      .def(nb::init<>());
  m.def(
      "read_strings",
      [](uintptr_t address, const std::vector<int64_t>& dims) {
        Slot slot;
        slot.view.rank = int(dims.size());
        std::copy(dims.begin(), dims.end(), slot.view.dims);
        slot.data = reinterpret_cast<std::byte*>(address);
        return string_array(slot);
      },
      "address"_a, "dims"_a,
      nb::sig("def read_strings(address: int, dims: list[int]) -> numpy.ndarray"),
      "The strings of Text records at an address, which a kernel has written.");
  m.def("pack_strings", pack_strings, "strings"_a,
        nb::sig("def pack_strings(strings: object) -> numpy.ndarray"),
        "Strings, or bytes in UTF-8, as kernels read them: records, then the bytes they point to. "
        "Must not be copied.");
  m.def("first_non_string", first_non_string, "strings"_a,
        nb::sig("def first_non_string(strings: object) -> int | None"),
        "The index of the first element of an array that is not a string, or None.");
  m.def("string_index", string_index, "block"_a, "count"_a,
        nb::sig("def string_index(block: object, count: int) -> numpy.ndarray"),
        "The hash table by which kernels find one of `count` strings; of equal ones the last.");
  m.def("string_numbers", string_numbers, "block"_a, "count"_a, "index"_a,
        nb::sig("def string_numbers(block: object, count: int, index: object) -> numpy.ndarray"),
        "By string of a block, the index of the one that a lookup finds.");
}

}  // namespace sdx
