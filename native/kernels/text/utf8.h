// UTF-8 decoding. Text is validated when it enters a session; nevertheless no byte sequence makes
// these read outside the text.
#pragma once

#include "base/inline.h"
#include "base/text.h"

namespace sdx::SDX_ISA {

// The code point at `at`, which advances past it. The lead byte tells the length.
SDX_INLINE uint32_t next_character(const Text& text, int64_t& at) {
  const auto byte = [&](int64_t i) { return i < text.size ? uint32_t(uint8_t(text.data[i])) : 0; };
  const uint32_t lead = byte(at++);
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  uint32_t c = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) c = c << 6 | (byte(at++) & 0x3F);
  if (at > text.size) at = text.size;
  return c;
}

SDX_INLINE int64_t utf8_bytes(uint32_t c) {
  return 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
}

SDX_INLINE char* put_character(char* to, uint32_t c) {
  const int64_t n = utf8_bytes(c);
  if (n == 1) {
    *to = char(c);
    return to + 1;
  }
  for (int64_t i = n - 1; i > 0; --i, c >>= 6) to[i] = char(0x80 | (c & 0x3F));
  to[0] = char((0xF00u >> n & 0xFF) | c);
  return to + n;
}

SDX_INLINE int64_t count_characters(const Text& text) {
  int64_t n = 0;
  for (int64_t i = 0; i < text.size; ++i) n += (uint8_t(text.data[i]) & 0xC0) != 0x80;
  return n;
}

// White space as Python's str.split defines it.
SDX_INLINE bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// A text without leading and trailing white space.
SDX_INLINE Text stripped(const Text& text) {
  int64_t begin = -1, end = 0;
  for (int64_t at = 0; at < text.size;) {
    const int64_t from = at;
    if (is_space(next_character(text, at))) continue;
    if (begin < 0) begin = from;
    end = at;
  }
  return begin < 0 ? Text{text.data, 0} : Text{text.data + begin, end - begin};
}

// The first 40 bytes of a text for error messages, printable ASCII only.
struct Shown {
  char text[44];

  SDX_INLINE explicit Shown(const Text& of) {
    int64_t n = 0;
    for (; n < 40 && n < of.size; ++n)
      text[n] = of.data[n] >= ' ' && of.data[n] < 127 ? of.data[n] : '?';
    text[n] = 0;
  }
};

}  // namespace sdx::SDX_ISA
