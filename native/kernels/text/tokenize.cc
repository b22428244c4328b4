// Tokenizer and RegexFullMatch, by DFAs over UTF-8 bytes. Tokens are views into the input's bytes.
#include "kernels/text/dfa.h"
#include "kernels/text/kernels.h"
#include "kernels/text/utf8.h"

namespace sdx::SDX_ISA::texting {
namespace {

enum Operand : int { kX, kMarks, kFirst };  // marks: padding, start and end; from kFirst on DFAs
enum TokenMode : int64_t {
  kMatches,
  kBetween,
  kCharacters
};  // tokenexp, separators, single characters

struct TokenArgs {
  int64_t count, width, min_characters;
  TokenMode mode;
  bool is_marked;
  int n_separators;
};

template <class F>
SDX_INLINE void each_match(const Data& data, const Text& text, F&& f) {
  const Dfa pattern(input<int32_t>(data, kFirst));
  int64_t begin, end = 0;
  while (pattern.search(text, end, begin, end)) f(Text{text.data + begin, end - begin});
}

// The texts between matches of all separators: split by the first, each part by the second, and so
// on recursively.
template <class F>
void each_between(const TokenArgs& a, const Data& data, const Text& text, int level, F& f) {
  if (level == a.n_separators) return f(text);
  const Dfa separator(input<int32_t>(data, kFirst + level));
  int64_t at = 0, begin, end;
  while (separator.search(text, at, begin, end)) {
    each_between(a, data, {text.data + at, begin - at}, level + 1, f);
    at = end;
  }
  each_between(a, data, {text.data + at, text.size - at}, level + 1, f);
}

// Calls f(number, token) for each token of a string; returns their number. Characters are counted
// only if the bytes leave it open whether a token has the minimum.
template <class F>
SDX_INLINE int64_t each_token(const TokenArgs& a, const Data& data, const Text& text, F f) {
  int64_t n = 0;
  auto take = [&](const Text& token) {
    if (token.size >= a.min_characters &&
        (token.size >= 4 * a.min_characters || count_characters(token) >= a.min_characters))
      f(n++, token);
  };
  if (a.mode == kMatches) {
    each_match(data, text, take);
  } else if (a.mode == kBetween) {
    each_between(a, data, text, 0, take);
  } else {
    for (int64_t at = 0; at < text.size;) {
      const int64_t begin = at;
      (void)next_character(text, at);
      f(n++, Text{text.data + begin, at - begin});
    }
  }
  return n;
}

Status token_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const TokenArgs*>(args);
  const Text* marks = input<Text>(data, kMarks);
  if (a.width == 0) return {};
  each(a.count, begin, end, [&](int64_t i) {
    Text* row = output<Text>(data) + i * a.width;
    const int64_t first = a.is_marked ? 1 : 0;
    int64_t n = each_token(a, data, input<Text>(data, kX)[i], [&](int64_t k, const Text& token) {
      if (first + k < a.width) row[first + k] = token;
    });
    if (a.is_marked) {
      row[0] = marks[1];
      row[n + 1] = marks[2];
      n += 2;
    }
    for (; n < a.width; ++n) row[n] = marks[0];
  });
  return {};
}

TokenArgs args_of(const Call& call) {
  return {call.in[kX].count(), 0, call.ints[2], TokenMode(call.ints[0]), call.ints[1] != 0,
          call.n_in - kFirst};
}

struct MatchArgs {
  int64_t count;
  Strided at;
};

Status match_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MatchArgs*>(args);
  const Dfa pattern(input<int32_t>(data, 1));
  each(a.count, begin, end, [&](int64_t i) {
    output<uint8_t>(data)[i] = pattern.matches(input<Text>(data, 0)[a.at(i)]);
  });
  return {};
}

}  // namespace

// Operands: strings; padding, start and end marks; DFAs. ints: the way, whether rows get start and
// end marks, the minimum number of characters of a token.
Status tokenize(const Call& call, Plan& plan) {
  auto* a = plan.make<TokenArgs>();
  *a = args_of(call);
  a->width = call.out[0].dim(-1);
  plan.args = a;
  plan.add(token_items, items_of(a->count), kPerItem * (100 + a->width * 10));
  return {};
}

// The width of the output is that of the longest row: strings are tokenized twice.
Status resolve_tokenize(const Call& call, const Data& data, View* out) {
  const TokenArgs a = args_of(call);
  int64_t longest = 0;
  for (int64_t i = 0; i < a.count; ++i) {
    const int64_t n = each_token(a, data, input<Text>(data, kX)[i], [](int64_t, const Text&) {});
    longest = n > longest ? n : longest;
  }
  for (int i = 0; i + 1 < out->rank; ++i) out->dims[i] = call.in[kX].dims[i];
  out->dims[out->rank - 1] = longest > 0 && a.is_marked ? longest + 2 : longest;
  return {};
}

// Operands: strings, the DFA.
Status full_match(const Call& call, Plan& plan) {
  auto* a = plan.make<MatchArgs>();
  a->count = call.in[0].count();
  a->at.set(call.in[0], call.in[0]);
  plan.args = a;
  plan.add(match_items, items_of(a->count), kPerItem * 50);
  return {};
}

}  // namespace sdx::SDX_ISA::texting
