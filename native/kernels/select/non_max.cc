// NonMaxSuppression. The search that finds the size keeps what it finds for the output.
#include "kernels/select/rows.h"
#include "simd/fold.h"

namespace sdx::SDX_ISA {
namespace {

// Bits of boxes that are still in question lie on the stack: resolving has no memory of its own.
constexpr int64_t kMostBoxes = 1 << 19;
constexpr int kWord = 64;

struct Bounds {
  float low[2], high[2], area;
};

SDX_INLINE float smaller(float a, float b) { return a != a || a < b ? a : b; }
SDX_INLINE float larger(float a, float b) { return a != a || a > b ? a : b; }

Bounds bounds_of(const float* box, bool is_centred) {
  Bounds made;
  for (int i = 0; i < 2; ++i) {
    const float a = box[i], b = box[i + 2];
    made.low[i] = is_centred ? a - b / 2 : smaller(a, b);
    made.high[i] = is_centred ? a + b / 2 : larger(a, b);
  }
  made.area = (made.high[0] - made.low[0]) * (made.high[1] - made.low[1]);
  return made;
}

bool overlaps(const Bounds& a, const Bounds& b, float threshold) {
  const float width = smaller(a.high[0], b.high[0]) - larger(a.low[0], b.low[0]);
  const float height = smaller(a.high[1], b.high[1]) - larger(a.low[1], b.low[1]);
  if (!(width > 0 && height > 0)) return false;
  const float shared = width * height, both = b.area + a.area - shared;
  return shared > 0 && both > 0 && shared / both > threshold;
}

struct Search {
  const float *boxes, *scores;
  int64_t n_batches, n_classes, n_boxes;
  int64_t limit;  // boxes of one class
  float overlap, least;
  bool has_least;
  bool is_centred;
};

// found(box) for every box of one class that stays, the best first.
template <class Found>
SDX_INLINE void search_class(const Search& s, const float* boxes, const float* scores,
                             Found&& found) {
  uint64_t open[kMostBoxes / kWord];
  const int64_t n_words = (s.n_boxes + kWord - 1) / kWord;
  for (int64_t w = 0; w < n_words; ++w) {
    open[w] = 0;
    for (int64_t i = w * kWord; i < (w + 1) * kWord && i < s.n_boxes; ++i) {
      const bool is_open = s.has_least ? scores[i] > s.least : scores[i] > -kInf;
      open[w] |= uint64_t(is_open) << (i % kWord);
    }
  }
  const auto each = [&](auto&& body) {
    for (int64_t w = 0; w < n_words; ++w)
      for (uint64_t left = open[w]; left != 0; left &= left - 1)
        body(w * kWord + __builtin_ctzll(left));
  };
  for (int64_t count = 0; count < s.limit; ++count) {
    int64_t best = -1;
    each([&](int64_t i) {
      if (best < 0 || scores[i] > scores[best]) best = i;
    });
    if (best < 0) return;
    found(best);
    open[best / kWord] &= ~(uint64_t(1) << (best % kWord));
    const Bounds chosen = bounds_of(boxes + 4 * best, s.is_centred);
    each([&](int64_t i) {
      if (overlaps(chosen, bounds_of(boxes + 4 * i, s.is_centred), s.overlap))
        open[i / kWord] &= ~(uint64_t(1) << (i % kWord));
    });
  }
}

// What a search among not too many boxes keeps on the stack.
constexpr int64_t kTabled = 1 << 15;
struct Table {
  float low[2][kTabled], high[2][kTabled], area[kTabled];  // of the boxes that stay
  uint64_t heap[kTabled + 1];                              // the others, the best on top
};

// Scores in the order of unsigned numbers, and among equals the box with the lower index first.
SDX_INLINE uint64_t rank_of(float score, int64_t box) {
  const float plain = score + 0.0f;  // one zero
  uint32_t bits;
  memcpy(&bits, &plain, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t(bits) << 32 | uint32_t(~uint32_t(box));
}

SDX_INLINE void sink(uint64_t* heap, int64_t n, int64_t hole, uint64_t entry) {
  for (int64_t child = 2 * hole + 1; child < n; child = 2 * hole + 1) {
    child += int64_t(child + 1 < n) & int64_t(heap[child + 1] > heap[child]);
    if (heap[child] <= entry) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = entry;
}

// Whether one of n boxes that stay overlaps another.
bool is_covered(const Table& t, int64_t n, const Bounds& b, float threshold) {
  i32v seen{};
  for (int64_t i = 0; i < n && !any(seen); i += 4 * kLanes)
    vloop(n - i < 4 * kLanes ? n - i : 4 * kLanes, [&](int64_t j, auto lanes) {
      f32v side[2];
      for (int k = 0; k < 2; ++k)
        side[k] = vmin(load(t.high[k] + i + j, lanes), splat(b.high[k])) -
                  vmax(load(t.low[k] + i + j, lanes), splat(b.low[k]));
      const f32v shared = side[0] * side[1], both = load(t.area + i + j, lanes) + b.area - shared;
      const i32v hit = (side[0] > 0) & (side[1] > 0) & (shared > 0) & (both > 0);
      // Lanes behind the last box are boxes without an area at 0.
      seen |= hit & (shared / both > threshold) & (load(t.area + i + j, lanes) != 0);
    });
  return any(seen);
}

template <class Found>
SDX_INLINE void search_table(const Search& s, Table& t, const float* boxes, const float* scores,
                             Found&& found) {
  const float least = s.has_least ? s.least : -kInf;
  int64_t n = 0;
  for (int64_t i = 0; i < s.n_boxes; ++i) {  // without a branch, which would often go wrong
    t.heap[n] = rank_of(scores[i], i);
    n += int64_t(scores[i] > least) & int64_t(scores[i] > -kInf);
  }
  t.heap[n] = 0;  // is looked at, and never taken
  for (int64_t i = n / 2 - 1; i >= 0; --i) sink(t.heap, n, i, t.heap[i]);
  for (int64_t count = 0; n > 0 && count < s.limit;) {
    const auto box = int64_t(uint32_t(~uint32_t(t.heap[0])));
    const uint64_t last = t.heap[--n];
    if (n > 0) sink(t.heap, n, 0, last);
    const Bounds b = bounds_of(boxes + 4 * box, s.is_centred);
    if (is_covered(t, count, b, s.overlap)) continue;
    found(box);
    for (int k = 0; k < 2; ++k) t.low[k][count] = b.low[k], t.high[k][count] = b.high[k];
    t.area[count++] = b.area;
  }
}

template <class Found>
SDX_INLINE void search(const Search& s, Found&& found) {
  Table table;
  for (int64_t batch = 0; batch < s.n_batches; ++batch) {
    const float* boxes = s.boxes + batch * s.n_boxes * 4;
    for (int64_t label = 0; label < s.n_classes; ++label) {
      const float* scores = s.scores + (batch * s.n_classes + label) * s.n_boxes;
      const auto keep = [&](int64_t box) { found(batch, label, box); };
      if (s.n_boxes <= kTabled)
        search_table(s, table, boxes, scores, keep);
      else
        search_class(s, boxes, scores, keep);
    }
  }
}

struct NonMaxArgs {
  Search search;
  DType most;
  bool has_most, has_overlap, has_least;
};

void describe(const Call& call, NonMaxArgs& a) {
  const View& scores = call.in[1];
  const auto has = [&](int slot) { return slot < call.n_in && call.in[slot].is_given(); };
  a.search.n_batches = scores.dims[0];
  a.search.n_classes = scores.dims[1];
  a.search.n_boxes = scores.dims[2];
  a.search.is_centred = call.ints[0] != 0;
  a.has_most = has(2), a.has_overlap = has(3), a.has_least = has(4);
  a.most = a.has_most ? call.in[2].dtype : DType::none;
}

Status read_limits(const NonMaxArgs& a, const Data& data, Search& s) {
  s = a.search;
  s.boxes = input<float>(data, 0), s.scores = input<float>(data, 1);
  s.limit = 0;
  if (a.has_most)
    s.limit = a.most == DType::i32 ? input<int32_t>(data, 2)[0] : input<int64_t>(data, 2)[0];
  s.overlap = a.has_overlap ? input<float>(data, 3)[0] : 0;
  s.has_least = a.has_least;
  s.least = a.has_least ? input<float>(data, 4)[0] : 0;
  if (!(s.overlap >= 0 && s.overlap <= 1))
    return Status::fail("iou_threshold is %g, outside [0, 1]", double(s.overlap));
  if (s.n_boxes > kMostBoxes)
    return Status::fail("%ld boxes are given, and at most %ld can be compared", long(s.n_boxes),
                        long(kMostBoxes));
  return {};
}

Status fill(const void* args, const Data& data, int64_t, int64_t) {
  Search s;
  Status status = read_limits(*static_cast<const NonMaxArgs*>(args), data, s);
  if (!status.ok()) return status;
  int64_t* y = output<int64_t>(data);
  if (data.found != nullptr && data.found->count > 0) {
    memcpy(y, data.found->numbers, size_t(data.found->count) * sizeof *y);
    return {};
  }
  search(s, [&](int64_t batch, int64_t label, int64_t box) {
    y[0] = batch, y[1] = label, y[2] = box;
    y += 3;
  });
  return {};
}

}  // namespace

Status non_max_sizes(const Call& call, const Data& data, View* out) {
  NonMaxArgs a;
  describe(call, a);
  Search s;
  Status status = read_limits(a, data, s);
  if (!status.ok()) return status;
  int64_t count = 0, room = 0;
  int64_t* kept = nullptr;
  bool keeps = data.found != nullptr;
  search(s, [&](int64_t batch, int64_t label, int64_t box) {
    if (keeps && count == room) {
      room = room == 0 ? 256 : 2 * room;
      kept = data.found->keep(data.found->owner, 3 * room);
      keeps = kept != nullptr;
    }
    if (keeps) kept[3 * count] = batch, kept[3 * count + 1] = label, kept[3 * count + 2] = box;
    ++count;
  });
  if (data.found != nullptr) data.found->keep(data.found->owner, keeps ? 3 * count : 0);
  out->dims[0] = count, out->dims[1] = 3;
  return {};
}

Status non_max(const Call& call, Plan& plan) {
  auto* a = plan.make<NonMaxArgs>();
  plan.args = a;
  describe(call, *a);
  plan.add(fill, call.out[0].dims[0] > 0, 1000);
  return {};
}

}  // namespace sdx::SDX_ISA
