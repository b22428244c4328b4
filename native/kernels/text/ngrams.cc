// TfIdfVectorizer: counts of n-grams and skip-grams. The n-grams of the model form a trie over word
// numbers; counting walks it token by token from every start position, through hash tables of the
// words and of the nodes.
#include "kernels/move/integer_operand.h"
#include "kernels/text/kernels.h"

namespace sdx::SDX_ISA::texting {
namespace {

// kIndex is the hash index of string words, or the number of each of the sorted integer words.
// kFirst maps a word to its trie node on level 1, or -1; kKeys holds the nodes of deeper levels,
// sorted: parent node * number of words + word.
enum Operand : int { kX, kWords, kIndex, kFirst, kKeys, kGrams, kColumns, kWeights };
enum Mode : int64_t { kCount, kWeight, kBoth };
enum Int : int { kMode, kShortest, kSkips, kLevels };  // then the start of each level, and the end

// Finds numbers by 64-bit keys: open addressing, half full at most.
struct Lookup {
  struct Slot {
    int64_t key = 0;
    int32_t found = -1;
  };
  Slot* slots = nullptr;
  int shift = 0;
  uint64_t last = 0;

  SDX_INLINE uint64_t home(int64_t key) const {
    return (uint64_t(key) * 0x9E3779B97F4A7C15u) >> shift;
  }
  // Allocates the table for n keys; false without memory.
  bool reserve(Plan& plan, int64_t n) {
    int bits = 4;
    while ((int64_t(1) << bits) < 2 * n) ++bits;
    slots = plan.table<Slot>(size_t(1) << bits);
    shift = 64 - bits, last = (uint64_t(1) << bits) - 1;
    return slots != nullptr;
  }
  SDX_INLINE void add(int64_t key, int64_t found) {
    uint64_t at = home(key);
    while (slots[at].found >= 0) at = (at + 1) & last;
    slots[at] = {key, int32_t(found)};
  }
  SDX_INLINE int64_t find(int64_t key) const {
    uint64_t at = home(key);
    while (slots[at].found >= 0 && slots[at].key != key) at = (at + 1) & last;
    return slots[at].found;
  }
};

struct GramArgs {
  int64_t n_rows, width, n_columns, n_words, n_slots, n_grams;
  Mode mode;
  int64_t shortest, skips, n_levels;
  const int64_t* starts;  // of the levels: in kKeys from the second on, in kGrams from the first
  bool has_weights;
  DType dtype;
  Lookup words, children;

  // The key of a trie node below level 0.
  SDX_INLINE int64_t key(int64_t level, int64_t node_and_word) const {
    return node_and_word * n_levels + level;
  }
};

// A thread's counters. Only touched counts are reset after a row: vocabularies are much larger than
// rows.
struct Counters {
  int32_t* counts;   // by n-gram, all zero between rows
  int32_t* touched;  // the n-grams with nonzero counts
  int32_t* tokens;   // word numbers of the row
  int64_t n_touched = 0;

  SDX_INLINE void add(int64_t gram) {
    if (counts[gram]++ == 0) touched[n_touched++] = int32_t(gram);
  }
};

// The word numbers of n tokens from `first` on.
void find_words(const GramArgs& a, const Data& data, int64_t first, int64_t n, int32_t* tokens) {
  if (a.dtype == DType::string) {
    const TextIndex index{input<uint64_t>(data, kIndex), a.n_slots, input<Text>(data, kWords)};
    for (int64_t i = 0; i < n; ++i)
      tokens[i] = int32_t(index.find(input<Text>(data, kX)[first + i]));
    return;
  }
  const Lookup words = a.words;
  const Integers x(data.in[kX], a.dtype);
  for (int64_t i = 0; i < n; ++i) tokens[i] = int32_t(words.find(x[first + i]));
}

// The child of a trie node by a word, or -1; `level` is the number of words before it.
SDX_INLINE int64_t child_of(const GramArgs& a, const Data& data, int64_t node, int64_t word,
                            int64_t level) {
  if (word < 0) return -1;
  if (level == 0) return input<int64_t>(data, kFirst)[word];
  return a.children.find(a.key(level, node * a.n_words + word));
}

// Counts every n-gram that begins at a token, with words `gap` apart. Unigrams count only once,
// with the first gap.
SDX_INLINE void count_from(const GramArgs& a, const Data& data, int64_t begin, int64_t gap,
                           Counters& counters) {
  const int64_t* grams = input<int64_t>(data, kGrams);
  int64_t node = 0, at = begin;
  for (int64_t level = 0; level < a.n_levels && at < a.width; ++level, at += gap) {
    node = child_of(a, data, node, counters.tokens[at], level);
    if (node < 0) return;
    const int64_t gram = grams[a.starts[level] + node];
    if (gram >= 0 && level + 1 >= a.shortest && (level > 0 || gap == 1)) counters.add(gram);
  }
}

void write_row(const GramArgs& a, const Data& data, Counters& counters, float* y) {
  memset(y, 0, size_t(a.n_columns) * sizeof *y);
  const int64_t* columns = input<int64_t>(data, kColumns);
  for (int64_t i = 0; i < counters.n_touched; ++i) {
    const int32_t gram = counters.touched[i];
    double value = a.mode == kWeight ? 1 : counters.counts[gram];
    if (a.has_weights && a.mode != kCount) value *= double(input<float>(data, kWeights)[gram]);
    y[columns[gram]] += float(value);
    counters.counts[gram] = 0;
  }
  counters.n_touched = 0;
}

Status gram_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GramArgs*>(args);
  auto* numbers = reinterpret_cast<int32_t*>(data.local);
  Counters counters{numbers, numbers + a.n_grams, numbers + 2 * a.n_grams};
  memset(counters.counts, 0, size_t(a.n_grams) * sizeof *counters.counts);
  // Unigrams have no gaps.
  const int64_t widest = a.n_levels < 2 ? 1 : (a.skips < a.width ? a.skips : a.width) + 1;
  for (int64_t row = begin; row < end; ++row) {
    find_words(a, data, row * a.width, a.width, counters.tokens);
    for (int64_t gap = 1; gap <= widest; ++gap)
      for (int64_t i = 0; i < a.width; ++i) count_from(a, data, i, gap, counters);
    write_row(a, data, counters, output<float>(data) + row * a.n_columns);
  }
  return {};
}

// Fills the hash tables from the constants; false without memory.
bool fill_lookups(const Call& call, GramArgs& a, Plan& plan) {
  if (a.dtype != DType::string) {
    const auto* words = static_cast<const int64_t*>(call.in[kWords].data);
    const auto* numbers = static_cast<const int64_t*>(call.in[kIndex].data);
    if (!a.words.reserve(plan, a.n_words)) return false;
    for (int64_t i = 0; i < a.n_words; ++i) a.words.add(words[i], numbers[i]);
  }
  const auto* keys = static_cast<const int64_t*>(call.in[kKeys].data);
  if (!a.children.reserve(plan, call.in[kKeys].count())) return false;
  for (int64_t level = 1; level < a.n_levels; ++level)
    for (int64_t i = a.starts[level]; i < a.starts[level + 1]; ++i)
      a.children.add(a.key(level, keys[i]), i - a.starts[level]);
  return true;
}

}  // namespace

Status count_grams(const Call& call, Plan& plan) {
  auto* a = plan.make<GramArgs>();
  const View &x = call.in[kX], &y = call.out[0];
  a->width = x.dim(-1), a->n_rows = x.count(0, x.rank - 1), a->n_columns = y.dim(-1);
  a->n_words = call.in[kFirst].count(), a->n_slots = call.in[kIndex].count();
  a->n_grams = call.in[kColumns].count();
  a->mode = Mode(call.ints[kMode]), a->shortest = call.ints[kShortest];
  a->skips = call.ints[kSkips];
  a->n_levels = call.n_ints - kLevels - 1;
  auto* starts = plan.make<int64_t>(size_t(a->n_levels + 1));
  for (int64_t i = 0; i <= a->n_levels; ++i) starts[i] = call.ints[kLevels + i];
  a->starts = starts;
  a->has_weights = call.in[kWeights].is_given();
  a->dtype = x.dtype;
  plan.args = a;
  if (!fill_lookups(call, *a, plan)) return no_table();
  plan.local_bytes = (2 * a->n_grams + a->width) * int64_t(sizeof(int32_t));
  // About 50 ns for the hash lookups of a token and of the trie nodes that begin there.
  plan.add(gram_rows, a->n_rows, a->n_columns / 8 + a->width * 50);
  return {};
}

}  // namespace sdx::SDX_ISA::texting
