// StringSplit by a delimiter, or by white space as Python's str.split. Parts are views into the
// input's bytes; nothing is copied.
#include "kernels/text/kernels.h"
#include "kernels/text/utf8.h"

namespace sdx::SDX_ISA::texting {
namespace {

// The position of the next delimiter from `from` on; the end of the text if there is none.
int64_t find_delimiter(const Text& text, const Text& delimiter, int64_t from) {
  const void* at =
      memmem(text.data + from, size_t(text.size - from), delimiter.data, size_t(delimiter.size));
  return at == nullptr ? text.size : static_cast<const char*>(at) - text.data;
}

// Calls f(number, part) for each part, with at most `most` splits (negative: no limit).
template <class F>
SDX_INLINE int64_t split_by_delimiter(const Text& text, const Text& delimiter, int64_t max_splits,
                                      F f) {
  if (text.size == 0) return 0;
  int64_t n = 0;
  for (int64_t from = 0;;) {
    const int64_t at = n == max_splits ? text.size : find_delimiter(text, delimiter, from);
    f(n++, Text{text.data + from, at - from});
    if (at == text.size) return n;
    from = at + delimiter.size;
  }
}

// The same by runs of white space, none at either end.
template <class F>
SDX_INLINE int64_t split_by_spaces(Text text, int64_t max_splits, F f) {
  text = stripped(text);
  int64_t n = 0;
  for (int64_t at = 0; at < text.size;) {
    int64_t begin = at, end = at;
    for (uint32_t c = next_character(text, at); is_space(c); c = next_character(text, at))
      begin = at;
    for (end = at; at < text.size; end = at)
      if (is_space(next_character(text, at))) break;
    if (n == max_splits) at = end = text.size;
    f(n++, Text{text.data + begin, end - begin});
  }
  return n;
}

struct SplitArgs {
  int64_t count, width, max_splits;
  bool has_delimiter;
  bool counts;  // whether the second output, the number of parts, exists
};

template <class F>
SDX_INLINE int64_t split_text(const SplitArgs& a, const Data& data, int64_t i, F f) {
  const Text& text = input<Text>(data, 0)[i];
  if (!a.has_delimiter) return split_by_spaces(text, a.max_splits, f);
  return split_by_delimiter(text, *input<Text>(data, 1), a.max_splits, f);
}

Status split_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SplitArgs*>(args);
  each(a.count, begin, end, [&](int64_t i) {
    Text* row = output<Text>(data, 0) + i * a.width;
    const int64_t n = split_text(a, data, i, [&](int64_t k, const Text& part) {
      if (k < a.width) row[k] = part;
    });
    if (a.counts) output<int64_t>(data, 1)[i] = n;
    for (int64_t k = n; k < a.width; ++k) row[k] = {nullptr, 0};
  });
  return {};
}

SplitArgs args_of(const Call& call) {
  return {call.in[0].count(), 0, call.ints[0], call.in[1].is_given(), call.n_out > 1};
}

}  // namespace

// Operands: strings, the delimiter (none: white space). ints: maxsplit, or -1.
Status split(const Call& call, Plan& plan) {
  auto* a = plan.make<SplitArgs>();
  *a = args_of(call);
  a->width = call.out[0].dim(-1);
  plan.args = a;
  plan.add(split_items, items_of(a->count), kPerItem * (50 + a->width));
  return {};
}

// The width of the output is the largest number of parts: strings are split twice.
Status resolve_split(const Call& call, const Data& data, View* out) {
  const SplitArgs a = args_of(call);
  int64_t width = 0;
  for (int64_t i = 0; i < a.count; ++i) {
    const int64_t n = split_text(a, data, i, [](int64_t, const Text&) {});
    width = n > width ? n : width;
  }
  for (int k = 0; k < call.n_out; ++k)
    for (int i = 0; i + 1 < out[0].rank; ++i) out[k].dims[i] = call.in[0].dims[i];
  out[0].dims[out[0].rank - 1] = width;
  return {};
}

}  // namespace sdx::SDX_ISA::texting
