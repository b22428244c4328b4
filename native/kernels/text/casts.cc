// Cast between numbers and strings, with the formats of ONNX's reference: %.8g for floats, repr for
// doubles that need more digits.
#include <charconv>

#include "kernels/elements.h"
#include "kernels/text/kernels.h"
#include "kernels/text/utf8.h"

namespace sdx::SDX_ISA::texting {
namespace {

constexpr int kMaxCharacters = 32;  // characters of a number at most

char* write_integer(char* to, uint64_t x, bool is_negative) {
  char digits[20];
  int n = 0;
  do {
    digits[n++] = char('0' + x % 10);
    x /= 10;
  } while (x != 0);
  if (is_negative) *to++ = '-';
  while (n > 0) *to++ = digits[--n];
  return to;
}

// The shortest digits that round-trip, formatted as Python's repr: an exponent below 1e-4 and from
// 1e16 on, otherwise a decimal point.
char* write_repr(char* to, double x) {
  char text[kMaxCharacters];
  const char* end =
      std::to_chars(text, text + kMaxCharacters, x, std::chars_format::scientific).ptr;
  char digits[20];
  int n = 0, exponent = 0;
  const char* at = text;
  if (*at == '-') *to++ = *at++;
  for (; *at != 'e'; ++at)
    if (*at != '.') digits[n++] = *at;
  const bool is_small = at[1] == '-';
  for (at += 2; at < end; ++at) exponent = exponent * 10 + (*at - '0');
  if (is_small) exponent = -exponent;
  if (exponent < -4 || exponent >= 16) {
    *to++ = digits[0];
    if (n > 1) *to++ = '.';
    for (int i = 1; i < n; ++i) *to++ = digits[i];
    *to++ = 'e';
    *to++ = is_small ? '-' : '+';
    const int size = is_small ? -exponent : exponent;
    if (size < 10) *to++ = '0';
    return write_integer(to, uint64_t(size), false);
  }
  for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1; ++i) {
    if (i == exponent + 1) *to++ = '.';
    *to++ = i < 0 || i >= n ? '0' : digits[i];
  }
  return to;
}

// Eight significant digits; a double that they do not round-trip gets all of its digits.
char* write_float(char* to, double x, bool is_double) {
  const auto word = [&](const char* text) {
    while (*text != 0) *to++ = *text++;
    return to;
  };
  if (x != x) return word("NaN");
  if (x - x != 0) return word(x > 0 ? "INF" : "-INF");
  char* end = std::to_chars(to, to + kMaxCharacters, x, std::chars_format::general, 8).ptr;
  if (!is_double) return end;
  double back = 0;
  std::from_chars(to, end, back);
  return back == x ? end : write_repr(to, x);
}

template <class T>
SDX_INLINE char* write_number(char* to, T x) {
  if constexpr (std::is_same_v<T, Bool>)
    return write_integer(to, x.value != 0, false);
  else if constexpr (kIsFloat<T>)
    return write_float(to, number<double>(x), std::is_same_v<T, double>);
  else if constexpr (std::is_signed_v<T>)
    return write_integer(to, x < 0 ? 0 - uint64_t(x) : uint64_t(x), x < 0);
  else
    return write_integer(to, x, false);
}

struct CastArgs {
  int64_t count;
  DType dtype;
};

template <class T>
Status write_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CastArgs*>(args);
  bool fits = true;
  each(a.count, begin, end, [&](int64_t i) {
    char text[2 * kMaxCharacters];
    const int64_t n = write_number(text, input<T>(data, 0)[i]) - text;
    char* to = allocate_bytes(data, n);
    fits = fits && to != nullptr;
    if (to == nullptr) return;
    memcpy(to, text, size_t(n));
    output<Text>(data)[i] = {to, n};
  });
  return fits ? Status() : no_memory(0);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lowered(char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; }

bool is_word(const char* at, const char* end, const char* word) {
  for (; *word != 0; ++word, ++at)
    if (at == end || lowered(*at) != *word) return false;
  return at == end;
}

// Whether decimal digits that are out of range overflow (true) or underflow (false), from the
// position of the first significant digit and the exponent: from_chars does not tell.
bool is_large(const char* at, const char* end) {
  int64_t power = 0, shift = 0;
  bool is_fraction = false, is_significant = false;
  for (; at < end && lowered(*at) != 'e'; ++at) {
    if (*at == '.') {
      is_fraction = true;
      continue;
    }
    is_significant = is_significant || *at != '0';
    if (is_significant && !is_fraction) ++power;
    if (!is_significant && is_fraction) --power;
  }
  const bool is_negative = at + 1 < end && at[1] == '-';
  for (at += 1; at < end; ++at)
    if (is_digit(*at) && shift < 1000000000) shift = shift * 10 + (*at - '0');
  return power + (is_negative ? -shift : shift) > 0;
}

// Parses a decimal number, infinity or NaN with white space around it; false for anything else.
bool read_float(const Text& text, double& value) {
  const char *at = text.data, *end = text.data + text.size;
  const auto is_blank = [](char c) { return c == ' ' || (c >= 9 && c <= 13); };
  while (at < end && is_blank(*at)) ++at;
  while (end > at && is_blank(end[-1])) --end;
  const bool is_negative = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) ++at;
  if (is_word(at, end, "inf") || is_word(at, end, "infinity")) {
    value = __builtin_inf();
  } else if (is_word(at, end, "nan")) {
    value = __builtin_nan("");
  } else if (at < end && (is_digit(*at) || (*at == '.' && at + 1 < end && is_digit(at[1])))) {
    const auto [stop, error] = std::from_chars(at, end, value);
    if (stop != end) return false;
    if (error == std::errc::result_out_of_range) value = is_large(at, end) ? __builtin_inf() : 0;
  } else {
    return false;
  }
  value = is_negative ? -value : value;
  return true;
}

// Parses an optional sign and up to 39 digits; false for anything else and on overflow of 64 bits.
bool read_digits(const Text& text, int64_t& value) {
  int64_t at = 0;
  const bool is_negative = text.size > 0 && text.data[0] == '-';
  if (text.size > 0 && (text.data[0] == '-' || text.data[0] == '+')) ++at;
  if (at == text.size || text.size - at >= 40) return false;
  uint64_t magnitude = 0;
  for (; at < text.size; ++at) {
    if (!is_digit(text.data[at])) return false;
    if (__builtin_mul_overflow(magnitude, uint64_t(10), &magnitude) ||
        __builtin_add_overflow(magnitude, uint64_t(text.data[at] - '0'), &magnitude))
      return false;
  }
  if (is_negative && magnitude > uint64_t(1) << 63) return false;
  value = int64_t(is_negative ? 0 - magnitude : magnitude);
  return true;
}

// Parses any number as 64-bit integer, truncating fractions; values from 2^63 on are uint64.
bool read_integer(const Text& source, int64_t& value) {
  const Text text = stripped(source);
  if (read_digits(text, value)) return true;
  double x = 0;
  if (!read_float(text, x) || !(x >= -0x1p63 && x < 0x1p64)) return false;
  value = x >= 0x1p63 ? int64_t(uint64_t(x)) : int64_t(x);
  return true;
}

template <class T>
Status read_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CastArgs*>(args);
  int64_t bad = -1;
  each(a.count, begin, end, [&](int64_t i) {
    const Text& text = input<Text>(data, 0)[i];
    bool is_number;
    if constexpr (std::is_floating_point_v<T>) {
      double x = 0;
      is_number = read_float(text, x);
      output<T>(data)[i] = T(x);
    } else {
      int64_t x = 0;
      is_number = read_integer(text, x);
      if constexpr (std::is_same_v<T, Bool>)
        output<T>(data)[i] = {uint8_t(x != 0)};
      else
        output<T>(data)[i] = T(x);
    }
    if (!is_number && bad < 0) bad = i;
  });
  if (bad < 0) return {};
  const Text& text = input<Text>(data, 0)[bad];
  double x = 0;
  return Status::fail(read_float(stripped(text), x) ? "the string '%s' is not an integer of 64 bits"
                                                    : "the string '%s' is not a number",
                      Shown(text).text);
}

using Numbers = Types<float, double, F16, BF16, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                      uint32_t, int64_t, uint64_t, Bool>;
using Read = Types<float, double, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t,
                   uint64_t, Bool>;

}  // namespace

Status write_numbers(const Call& call, Plan& plan) {
  auto* a = plan.make<CastArgs>();
  *a = {call.in[0].count(), call.in[0].dtype};
  plan.args = a;
  return visit(a->dtype, Numbers{}, [&]<class T>() {
    plan.add(write_items<T>, items_of(a->count), kPerItem * 60);
    return Status();
  });
}

Status read_numbers(const Call& call, Plan& plan) {
  auto* a = plan.make<CastArgs>();
  *a = {call.in[0].count(), call.out[0].dtype};
  plan.args = a;
  return visit(a->dtype, Read{}, [&]<class T>() {
    plan.add(read_items<T>, items_of(a->count), kPerItem * 30);
    return Status();
  });
}

}  // namespace sdx::SDX_ISA::texting
