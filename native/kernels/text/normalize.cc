// StringNormalizer: the case of letters, and words that are left out.
#include "kernels/text/rows.h"
#include "kernels/text/utf8.h"

namespace sdx::SDX_ISA::texting {
namespace {

enum Operand : int { kX, kFold, kChange, kStops, kIndex };
enum Change : int64_t { kKeep, kLower, kUpper };

// Letters that change, in order, and what each becomes.
struct Letters {
  const uint32_t* from = nullptr;
  int64_t n = 0;
  bool is_plain = true;  // ASCII letters are as in English
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

// A text with its letters changed: itself where none is; false where there is no memory.
bool change(const Letters& letters, const Data& data, Text& text) {
  int64_t bytes = 0;
  bool is_same = true;
  for (int64_t at = 0; at < text.size;) {
    const uint32_t c = next_character(text, at), made = letters(c);
    is_same = is_same && c == made;
    bytes += utf8_bytes(made);
  }
  if (is_same) return true;
  char* const room = room_for(data, bytes);
  if (room == nullptr) return false;
  char* to = room;
  for (int64_t at = 0; at < text.size;) to = put_character(to, letters(next_character(text, at)));
  text = {room, to - room};
  return true;
}

struct NormalizeArgs {
  int64_t count, n_made, n_slots, n_fold, n_change;
  Change action;
  bool is_plain, folds, stops;

  SDX_INLINE Letters fold(const Data& data) const {
    return {input<uint32_t>(data, kFold), n_fold, is_plain, false};
  }
  SDX_INLINE Letters changes(const Data& data) const {
    return {input<uint32_t>(data, kChange), n_change, is_plain, action == kUpper};
  }
};

// ints: the action, whether stop words are compared in one case, whether ASCII letters are plain.
NormalizeArgs args_of(const Call& call) {
  NormalizeArgs a{};
  const auto letters = [&](int slot) {
    return call.in[slot].is_given() ? call.in[slot].dims[1] : 0;
  };
  a.count = call.in[kX].count();
  a.n_fold = letters(kFold), a.n_change = letters(kChange);
  a.stops = call.in[kStops].is_given();
  a.n_slots = a.stops ? call.in[kIndex].count() : 0;
  a.action = Change(call.ints[0]), a.folds = call.ints[1] != 0, a.is_plain = call.ints[2] != 0;
  return a;
}

// Whether a word is among those to be left out; false in `fits` where there is no memory.
bool is_stopped(const NormalizeArgs& a, const Data& data, Text word, bool& fits) {
  if (!a.stops) return false;
  if (a.folds) fits = change(a.fold(data), data, word) && fits;
  const TextIndex index{input<uint64_t>(data, kIndex), a.n_slots, input<Text>(data, kStops)};
  return index.find(word) >= 0;
}

Status change_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const NormalizeArgs*>(args);
  const Letters letters = a.changes(data);
  bool fits = true;
  each(a.count, begin, end, [&](int64_t i) {
    Text& made = output<Text>(data)[i];
    made = input<Text>(data, kX)[i];
    if (a.action != kKeep) fits = change(letters, data, made) && fits;
  });
  return fits ? Status() : no_memory(0);
}

// All words at once: where one goes depends on those before it.
Status keep_words(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const NormalizeArgs*>(args);
  const Letters letters = a.changes(data);
  bool fits = true;
  int64_t n = 0;
  for (int64_t i = 0; i < a.count && n < a.n_made; ++i) {
    Text word = input<Text>(data, kX)[i];
    if (is_stopped(a, data, word, fits)) continue;
    if (a.action != kKeep) fits = change(letters, data, word) && fits;
    output<Text>(data)[n++] = word;
  }
  for (; n < a.n_made; ++n) output<Text>(data)[n] = {nullptr, 0};
  return fits ? Status() : no_memory(0);
}

}  // namespace

// Operands: words, letters for comparing, letters for the result, stop words with their index.
Status normalize(const Call& call, Plan& plan) {
  auto* a = plan.make<NormalizeArgs>();
  *a = args_of(call);
  a->n_made = call.out[0].count();
  plan.args = a;
  if (a->stops)
    plan.add(keep_words, 1, a->count * 100);
  else
    plan.add(change_items, items_of(a->count), kPerItem * 50);
  return {};
}

Status resolve_normalize(const Call& call, const Data& data, View* out) {
  const NormalizeArgs a = args_of(call);
  int64_t kept = 0;
  bool fits = true;
  for (int64_t i = 0; i < a.count; ++i)
    kept += !is_stopped(a, data, input<Text>(data, kX)[i], fits);
  for (int i = 0; i < out->rank; ++i) out->dims[i] = call.in[kX].dims[i];
  out->dims[out->rank - 1] = kept > 0 ? kept : 1;
  return fits ? Status() : no_memory(0);
}

}  // namespace sdx::SDX_ISA::texting
