// A bounds-checked reader of the protobuf wire format. It never copies: strings and messages are
// views of the buffer.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sdx {

static_assert(std::endian::native == std::endian::little, "the wire format is read in place");

enum class Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

// A tag: the field number, its encoding, and where it starts.
struct Field {
  uint32_t number = 0;
  Wire wire = Wire::varint;
  const char* at = nullptr;
};

// A cursor over one message. A copy is an independent cursor over the same bytes.
//
// Reads of known fields take the field's name, for error messages only. Each throws DecodeError
// with field and byte offset if the bytes do not have the expected encoding.
class Reader {
 public:
  // Nesting of messages, as protobuf limits it: also bounds the recursion of the decoders.
  static constexpr int kMaxDepth = 100;

  Reader() = default;
  Reader(std::string_view buffer, const char* message)
      : base_(buffer.data()),
        size_(buffer.size()),
        pos_(buffer.data()),
        end_(buffer.data() + buffer.size()),
        message_(message) {}

  // Reads the next tag; false at the end of the message.
  bool next(Field& field);

  int64_t int64(const Field& field, const char* name);
  int32_t int32(const Field& field, const char* name);
  float float32(const Field& field, const char* name);
  std::string_view bytes(const Field& field, const char* name);
  std::string_view utf8(const Field& field, const char* name);  // bytes that must be UTF-8
  Reader child(const Field& field, const char* name, const char* message);
  void skip(const Field& field);

  // Reads the next tag if it equals that of `field`. Tree ensembles have long runs of one repeated
  // field, which would be slow through the decoder's dispatch. One-byte tags only.
  bool again(Field& field) {
    if (pos_ == end_ || *pos_ != static_cast<char>(field.number << 3 | uint32_t(field.wire)) ||
        field.number > 15)
      return false;
    field.at = pos_++;
    return true;
  }

  // Calls `each` for the elements of a repeated scalar field: a packed chunk or a run of fields.
  template <class F>
  void varints(Field field, const char* name, F&& each);
  template <class T, class F>
  void fixed(Field field, const char* name, F&& each);

  // Skips a repeated scalar; returns its bytes without reading them.
  std::string_view skip_scalars(const Field& field, const char* name, Wire element);

  uint64_t offset_of(const char* at) const { return static_cast<uint64_t>(at - base_); }
  [[noreturn]] void fail(const Field& field, const char* name, const std::string& what) const;

 private:
  void expect(const Field& field, const char* name, Wire wire) const {
    if (field.wire != wire) fail_wire(field, name, wire);
  }
  uint64_t read_varint(const Field& field, const char* name) {
    const bool is_short = pos_ != end_ && static_cast<uint8_t>(*pos_) < 0x80;
    return is_short ? static_cast<uint8_t>(*pos_++) : read_long_varint(field, name);
  }
  [[noreturn]] void fail_wire(const Field& field, const char* name, Wire wire) const;
  uint64_t read_long_varint(const Field& field, const char* name);
  std::string_view read_bytes(const Field& field, const char* name);
  template <class T>
  T read_fixed(const Field& field, const char* name);
  const char* take(const Field& field, const char* name, uint64_t n) {
    if (n > left()) fail_length(field, name, n);
    const char* start = pos_;
    pos_ += n;
    return start;
  }
  [[noreturn]] void fail_length(const Field& field, const char* name, uint64_t n) const;
  Reader over(std::string_view chunk) const;
  uint64_t left() const { return static_cast<uint64_t>(end_ - pos_); }

  const char* base_ = nullptr;
  uint64_t size_ = 0;
  const char* pos_ = nullptr;
  const char* end_ = nullptr;
  const char* message_ = "";
  int depth_ = 0;
};

template <class T>
T Reader::read_fixed(const Field& field, const char* name) {
  T value;
  std::memcpy(&value, take(field, name, sizeof value), sizeof value);
  return value;
}

template <class F>
void Reader::varints(Field field, const char* name, F&& each) {
  if (field.wire == Wire::bytes) {
    for (Reader chunk = over(read_bytes(field, name)); chunk.left() != 0;)
      each(chunk.read_varint(field, name));
    return;
  }
  expect(field, name, Wire::varint);
  do each(read_varint(field, name));
  while (again(field));
}

template <class T, class F>
void Reader::fixed(Field field, const char* name, F&& each) {
  constexpr Wire kElement = sizeof(T) == 4 ? Wire::fixed32 : Wire::fixed64;
  if (field.wire == Wire::bytes) {
    const std::string_view chunk = skip_scalars(field, name, kElement);
    for (Reader r = over(chunk); r.left() != 0;) each(r.read_fixed<T>(field, name));
    return;
  }
  expect(field, name, kElement);
  do each(read_fixed<T>(field, name));
  while (again(field));
}

}  // namespace sdx
