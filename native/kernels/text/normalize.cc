// StringNormalizer: case conversion by a locale's table of code points, and removal of stop words
// by a hash index.
#include "kernels/text/kernels.h"
#include "kernels/text/utf8.h"

namespace sdx::SDX_ISA::texting {
namespace {

enum Operand : int { kX, kFold, kChange, kStops, kIndex };
enum Change : int64_t { kKeep, kLower, kUpper };

// A case mapping: sorted code points that change, followed by what each becomes.
struct CaseMap {
  const uint32_t* from = nullptr;
  int64_t n = 0;
  bool is_plain = true;  // ASCII letters map as in English: no search for them
  bool is_upper = false;

  SDX_INLINE uint32_t operator()(uint32_t c) const {
    if (c < 0x80 && is_plain) {
      const uint32_t first = is_upper ? 'a' : 'A';
      return c - first < 26 ? c ^ 0x20 : c;
    }
    int64_t low = 0, left = n;
    while (left > 0) {
      const int64_t half = left / 2;
      const bool is_below = from[low + half] < c;
      low = is_below ? low + half + 1 : low;
      left = is_below ? left - half - 1 : half;
    }
    return low < n && from[low] == c ? from[n + low] : c;
  }
};

// Maps a text, which stays as it is if no letter changes; false if there is no memory. Two passes:
// the first measures, since mapped code points may need more bytes.
bool apply_case(const CaseMap& case_map, const Data& data, Text& text) {
  int64_t bytes = 0;
  bool is_same = true;
  for (int64_t at = 0; at < text.size;) {
    const uint32_t c = next_character(text, at), result = case_map(c);
    is_same = is_same && c == result;
    bytes += utf8_bytes(result);
  }
  if (is_same) return true;
  char* const bytes_begin = allocate_bytes(data, bytes);
  if (bytes_begin == nullptr) return false;
  char* to = bytes_begin;
  for (int64_t at = 0; at < text.size;) to = put_character(to, case_map(next_character(text, at)));
  text = {bytes_begin, to - bytes_begin};
  return true;
}

struct NormalizeArgs {
  int64_t count, n_outputs, n_slots, n_fold, n_change;
  Change action;
  bool is_plain, folds, stops;

  SDX_INLINE CaseMap compare_map(const Data& data) const {
    return {input<uint32_t>(data, kFold), n_fold, is_plain, false};
  }
  SDX_INLINE CaseMap output_map(const Data& data) const {
    return {input<uint32_t>(data, kChange), n_change, is_plain, action == kUpper};
  }
};

// ints: the action, whether stop words are compared case-insensitively, whether ASCII letters map
// as in English.
NormalizeArgs args_of(const Call& call) {
  NormalizeArgs a{};
  const auto case_map = [&](int operand) {
    return call.in[operand].is_given() ? call.in[operand].dims[1] : 0;
  };
  a.count = call.in[kX].count();
  a.n_fold = case_map(kFold), a.n_change = case_map(kChange);
  a.stops = call.in[kStops].is_given();
  a.n_slots = a.stops ? call.in[kIndex].count() : 0;
  a.action = Change(call.ints[0]), a.folds = call.ints[1] != 0, a.is_plain = call.ints[2] != 0;
  return a;
}

// Whether a word is a stop word; clears `fits` if there is no memory to fold its case.
bool is_stop_word(const NormalizeArgs& a, const Data& data, Text word, bool& fits) {
  if (!a.stops) return false;
  if (a.folds) fits = apply_case(a.compare_map(data), data, word) && fits;
  const TextIndex index{input<uint64_t>(data, kIndex), a.n_slots, input<Text>(data, kStops)};
  return index.find(word) >= 0;
}

Status change_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const NormalizeArgs*>(args);
  const CaseMap case_map = a.output_map(data);
  bool fits = true;
  each(a.count, begin, end, [&](int64_t i) {
    Text& result = output<Text>(data)[i];
    result = input<Text>(data, kX)[i];
    if (a.action != kKeep) fits = apply_case(case_map, data, result) && fits;
  });
  return fits ? Status() : no_memory(0);
}

// With stop words, one item: the output position of a word depends on those before it.
Status keep_words(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const NormalizeArgs*>(args);
  const CaseMap case_map = a.output_map(data);
  bool fits = true;
  int64_t n = 0;
  for (int64_t i = 0; i < a.count && n < a.n_outputs; ++i) {
    Text word = input<Text>(data, kX)[i];
    if (is_stop_word(a, data, word, fits)) continue;
    if (a.action != kKeep) fits = apply_case(case_map, data, word) && fits;
    output<Text>(data)[n++] = word;
  }
  for (; n < a.n_outputs; ++n) output<Text>(data)[n] = {nullptr, 0};
  return fits ? Status() : no_memory(0);
}

}  // namespace

// Operands: words, case map for comparing, case map of the result, stop words and their hash index.
Status normalize(const Call& call, Plan& plan) {
  auto* a = plan.make<NormalizeArgs>();
  *a = args_of(call);
  a->n_outputs = call.out[0].count();
  plan.args = a;
  if (a->stops)
    plan.add(keep_words, 1, a->count * 100);
  else
    plan.add(change_items, items_of(a->count), kPerItem * 50);
  return {};
}

// Counts the words that remain; at least one, since an empty result is a single empty string.
Status resolve_normalize(const Call& call, const Data& data, View* out) {
  const NormalizeArgs a = args_of(call);
  int64_t n_kept = 0;
  bool fits = true;
  for (int64_t i = 0; i < a.count; ++i)
    n_kept += !is_stop_word(a, data, input<Text>(data, kX)[i], fits);
  for (int i = 0; i < out->rank; ++i) out->dims[i] = call.in[kX].dims[i];
  out->dims[out->rank - 1] = n_kept > 0 ? n_kept : 1;
  return fits ? Status() : no_memory(0);
}

}  // namespace sdx::SDX_ISA::texting
