#include "load/wire.h"

#include "base/error.h"
#include "load/utf8.h"

namespace sdx {
namespace {

const char* wire_name(Wire wire) {
  switch (wire) {
    case Wire::varint: return "varint";
    case Wire::fixed64: return "fixed64";
    case Wire::bytes: return "bytes";
    case Wire::fixed32: return "fixed32";
  }
  return "unknown";
}

}  // namespace

void Reader::fail(const Field& field, const char* name, const std::string& what) const {
  const std::string message = message_;
  const std::string where = name ? message + "." + name
                            : field.number != 0
                                ? "field " + std::to_string(field.number) + " of " + message
                                : "a tag of " + message;
  throw DecodeError(what + ", in " + where + " at byte " + std::to_string(offset_of(field.at)) +
                    " of " + std::to_string(size_));
}

// A tag is a varint: the field number above three bits of wire type.
bool Reader::next(Field& field) {
  if (pos_ == end_) return false;
  field = Field{.at = pos_};
  const uint64_t tag = read_varint(field, nullptr);
  const auto wire = static_cast<uint8_t>(tag & 7);
  if (tag >> 32 || tag >> 3 == 0)
    fail(field, nullptr, "the field number " + std::to_string(tag >> 3) + " is out of range");
  field.number = static_cast<uint32_t>(tag >> 3);
  if (wire == 3 || wire == 4) fail(field, nullptr, "groups are not part of ONNX");
  if (wire > 5) fail(field, nullptr, "the wire type " + std::to_string(wire) + " does not exist");
  field.wire = static_cast<Wire>(wire);
  return true;
}

int64_t Reader::int64(const Field& field, const char* name) {
  expect(field, name, Wire::varint);
  return static_cast<int64_t>(read_varint(field, name));
}

// Protobuf writes negative int32 values sign-extended to 64 bits: the low half is the value.
int32_t Reader::int32(const Field& field, const char* name) {
  return static_cast<int32_t>(int64(field, name));
}

float Reader::float32(const Field& field, const char* name) {
  expect(field, name, Wire::fixed32);
  return read_fixed<float>(field, name);
}

std::string_view Reader::bytes(const Field& field, const char* name) {
  expect(field, name, Wire::bytes);
  return read_bytes(field, name);
}

std::string_view Reader::utf8(const Field& field, const char* name) {
  const std::string_view value = bytes(field, name);
  if (!is_utf8(value)) fail(field, name, "the string is not UTF-8");
  return value;
}

Reader Reader::child(const Field& field, const char* name, const char* message) {
  Reader inner = over(bytes(field, name));
  if (++inner.depth_ > kMaxDepth)
    fail(field, name, "messages are nested more than " + std::to_string(kMaxDepth) + " deep");
  inner.message_ = message;
  return inner;
}

void Reader::skip(const Field& field) {
  switch (field.wire) {
    case Wire::varint: read_varint(field, nullptr); break;
    case Wire::fixed64: take(field, nullptr, 8); break;
    case Wire::bytes: read_bytes(field, nullptr); break;
    case Wire::fixed32: take(field, nullptr, 4); break;
  }
}

std::string_view Reader::skip_scalars(const Field& field, const char* name, Wire element) {
  if (field.wire != Wire::bytes) {
    expect(field, name, element);
    const char* start = pos_;
    skip(field);
    return {start, static_cast<size_t>(pos_ - start)};
  }
  // Packed varints have no fixed width; they are validated when they are read.
  const std::string_view chunk = read_bytes(field, name);
  const size_t width = element == Wire::fixed32 ? 4 : element == Wire::fixed64 ? 8 : 1;
  if (chunk.size() % width != 0)
    fail(field, name,
         "the packed length " + std::to_string(chunk.size()) + " is not a multiple of " +
             std::to_string(width));
  return chunk;
}

void Reader::fail_wire(const Field& field, const char* name, Wire wire) const {
  fail(field, name,
       std::string("the wire type is ") + wire_name(field.wire) + " instead of " + wire_name(wire));
}

uint64_t Reader::read_long_varint(const Field& field, const char* name) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (pos_ == end_) fail(field, name, "the varint is cut off");
    const auto byte = static_cast<uint8_t>(*pos_++);
    if (shift == 63 && byte > 1) break;  // the tenth byte has one bit left
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail(field, name, "the varint has more than 64 bits");
}

void Reader::fail_length(const Field& field, const char* name, uint64_t n) const {
  fail(field, name,
       "the length is " + std::to_string(n) + " bytes but only " + std::to_string(left()) +
           " are left");
}

std::string_view Reader::read_bytes(const Field& field, const char* name) {
  const uint64_t n = read_varint(field, name);
  return {take(field, name, n), n};
}

// A reader of a chunk that reports offsets in the whole buffer.
Reader Reader::over(std::string_view chunk) const {
  Reader inner = *this;
  inner.pos_ = chunk.data();
  inner.end_ = chunk.data() + chunk.size();
  return inner;
}

}  // namespace sdx
