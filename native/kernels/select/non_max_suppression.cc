// NonMaxSuppression: greedy NMS. Boxes are visited by descending score, and one is selected unless
// its IoU with a box selected before it exceeds the threshold.
//
// Up to kHeapBoxes candidates the order comes from a binary max-heap, and a candidate is compared
// with all selected boxes, which are stored as arrays of coordinates for vector loops. Beyond that,
// a bitmap marks the remaining candidates, the best is select by a scan, and it clears those it
// suppresses: quadratic, but 64 KiB instead of megabytes of stack.
//
// The number of selected boxes sizes the output, so the search runs before the output exists; its
// result is kept in `data.resolved`, and the kernel itself only copies it.
#include "kernels/select/kernels.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

// The bitmap of candidates is on the stack, since resolving sizes has no scratch memory: 64 KiB.
constexpr int64_t kMaxBoxes = 1 << 19;
constexpr int kWord = 64;

struct Bounds {
  float low[2], high[2], area;
};

// These keep a NaN of `a`, and one of `b` where `a` is none, so NaN boxes iou_threshold nothing.
SDX_INLINE float nan_min(float a, float b) { return a != a || a < b ? a : b; }
SDX_INLINE float nan_max(float a, float b) { return a != a || a > b ? a : b; }

// A box is two opposite corners in any order, or, centred, its centre and its size.
Bounds bounds_of(const float* box, bool is_centred) {
  Bounds bounds;
  for (int i = 0; i < 2; ++i) {
    const float a = box[i], b = box[i + 2];
    bounds.low[i] = is_centred ? a - b / 2 : nan_min(a, b);
    bounds.high[i] = is_centred ? a + b / 2 : nan_max(a, b);
  }
  bounds.area = (bounds.high[0] - bounds.low[0]) * (bounds.high[1] - bounds.low[1]);
  return bounds;
}

// Whether the intersection over union exceeds the threshold.
bool overlaps(const Bounds& a, const Bounds& b, float threshold) {
  const float width = nan_min(a.high[0], b.high[0]) - nan_max(a.low[0], b.low[0]);
  const float height = nan_min(a.high[1], b.high[1]) - nan_max(a.low[1], b.low[1]);
  if (!(width > 0 && height > 0)) return false;
  const float intersection = width * height, union_area = b.area + a.area - intersection;
  return intersection > 0 && union_area > 0 && intersection / union_area > threshold;
}

struct Search {
  const float *boxes, *scores;
  int64_t n_batches, n_classes, n_boxes;
  int64_t limit;  // selected boxes of one class
  float iou_threshold, score_threshold;
  bool has_score_threshold;
  bool is_centred;
};

// Calls select(box) for every selected box of one class, by descending score. Bitmap variant.
template <class Select>
SDX_INLINE void search_bitmap(const Search& s, const float* boxes, const float* scores,
                              Select&& select) {
  uint64_t candidates[kMaxBoxes / kWord];
  const int64_t n_words = (s.n_boxes + kWord - 1) / kWord;
  for (int64_t w = 0; w < n_words; ++w) {
    candidates[w] = 0;
    for (int64_t i = w * kWord; i < (w + 1) * kWord && i < s.n_boxes; ++i) {
      const bool is_candidate =
          s.has_score_threshold ? scores[i] > s.score_threshold : scores[i] > -kInf;
      candidates[w] |= uint64_t(is_candidate) << (i % kWord);
    }
  }
  const auto each = [&](auto&& body) {
    for (int64_t w = 0; w < n_words; ++w)
      for (uint64_t left = candidates[w]; left != 0; left &= left - 1)
        body(w * kWord + __builtin_ctzll(left));
  };
  for (int64_t count = 0; count < s.limit; ++count) {
    int64_t best = -1;
    each([&](int64_t i) {
      if (best < 0 || scores[i] > scores[best]) best = i;
    });
    if (best < 0) return;
    select(best);
    candidates[best / kWord] &= ~(uint64_t(1) << (best % kWord));
    const Bounds chosen = bounds_of(boxes + 4 * best, s.is_centred);
    each([&](int64_t i) {
      if (overlaps(chosen, bounds_of(boxes + 4 * i, s.is_centred), s.iou_threshold))
        candidates[i / kWord] &= ~(uint64_t(1) << (i % kWord));
    });
  }
}

// The heap variant's state, 900 KiB of stack.
constexpr int64_t kHeapBoxes = 1 << 15;
struct HeapState {
  float low[2][kHeapBoxes], high[2][kHeapBoxes],
      area[kHeapBoxes];           // selected boxes, structure of arrays
  uint64_t heap[kHeapBoxes + 1];  // candidates
};

// A heap key: the score's bits, mapped so that unsigned comparison orders them as floats (negative
// ones inverted, the others with the sign bit set), above the inverted index, so that among equal
// scores the lower index comes first.
SDX_INLINE uint64_t heap_key(float score, int64_t box) {
  const float plain = score + 0.0f;  // -0 becomes 0, so that both compare equal
  uint32_t bits;
  memcpy(&bits, &plain, sizeof bits);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t(bits) << 32 | uint32_t(~uint32_t(box));
}

// Sifts an entry down from the hole. The nan_max child is chosen without a branch: its outcome is
// random, and mispredictions would dominate.
SDX_INLINE void sift_down(uint64_t* heap, int64_t n, int64_t hole, uint64_t entry) {
  for (int64_t child = 2 * hole + 1; child < n; child = 2 * hole + 1) {
    child += int64_t(child + 1 < n) & int64_t(heap[child + 1] > heap[child]);
    if (heap[child] <= entry) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = entry;
}

// Whether one of n selected boxes suppresses b, four vectors of boxes between checks.
bool is_suppressed(const HeapState& t, int64_t n, const Bounds& b, float threshold) {
  i32v seen{};
  for (int64_t i = 0; i < n && !any(seen); i += 4 * kLanes)
    vloop(n - i < 4 * kLanes ? n - i : 4 * kLanes, [&](int64_t j, auto lanes) {
      f32v side[2];
      for (int k = 0; k < 2; ++k)
        side[k] = vmin(load(t.high[k] + i + j, lanes), splat(b.high[k])) -
                  vmax(load(t.low[k] + i + j, lanes), splat(b.low[k]));
      const f32v intersection = side[0] * side[1],
                 union_area = load(t.area + i + j, lanes) + b.area - intersection;
      const i32v hit = (side[0] > 0) & (side[1] > 0) & (intersection > 0) & (union_area > 0);
      // Lanes after the last box load as zeros: an area of 0, which no box with a positive
      // intersection has.
      seen |= hit & (intersection / union_area > threshold) & (load(t.area + i + j, lanes) != 0);
    });
  return any(seen);
}

template <class Select>
SDX_INLINE void search_heap(const Search& s, HeapState& t, const float* boxes, const float* scores,
                            Select&& select) {
  const float score_threshold = s.has_score_threshold ? s.score_threshold : -kInf;
  int64_t n = 0;
  for (int64_t i = 0; i < s.n_boxes; ++i) {  // branch-free: whether a score passes is unpredictable
    t.heap[n] = heap_key(scores[i], i);
    n += int64_t(scores[i] > score_threshold) & int64_t(scores[i] > -kInf);
  }
  t.heap[n] = 0;  // sift_down reads heap[child + 1] before it checks the bound
  for (int64_t i = n / 2 - 1; i >= 0; --i) sift_down(t.heap, n, i, t.heap[i]);
  for (int64_t count = 0; n > 0 && count < s.limit;) {
    const auto box = int64_t(uint32_t(~uint32_t(t.heap[0])));
    const uint64_t last = t.heap[--n];
    if (n > 0) sift_down(t.heap, n, 0, last);
    const Bounds b = bounds_of(boxes + 4 * box, s.is_centred);
    if (is_suppressed(t, count, b, s.iou_threshold)) continue;
    select(box);
    for (int k = 0; k < 2; ++k) t.low[k][count] = b.low[k], t.high[k][count] = b.high[k];
    t.area[count++] = b.area;
  }
}

template <class Select>
SDX_INLINE void search(const Search& s, Select&& select) {
  HeapState state;
  for (int64_t batch = 0; batch < s.n_batches; ++batch) {
    const float* boxes = s.boxes + batch * s.n_boxes * 4;
    for (int64_t label = 0; label < s.n_classes; ++label) {
      const float* scores = s.scores + (batch * s.n_classes + label) * s.n_boxes;
      const auto keep = [&](int64_t box) { select(batch, label, box); };
      if (s.n_boxes <= kHeapBoxes)
        search_heap(s, state, boxes, scores, keep);
      else
        search_bitmap(s, boxes, scores, keep);
    }
  }
}

struct NonMaxArgs {
  Search search;
  DType limit_type;
  bool has_limit, has_iou_threshold, has_score_threshold;
};

void describe(const Call& call, NonMaxArgs& a) {
  const View& scores = call.in[1];
  const auto has = [&](int operand) { return operand < call.n_in && call.in[operand].is_given(); };
  a.search.n_batches = scores.dims[0];
  a.search.n_classes = scores.dims[1];
  a.search.n_boxes = scores.dims[2];
  a.search.is_centred = call.ints[0] != 0;
  a.has_limit = has(2), a.has_iou_threshold = has(3), a.has_score_threshold = has(4);
  a.limit_type = a.has_limit ? call.in[2].dtype : DType::none;
}

Status read_limits(const NonMaxArgs& a, const Data& data, Search& s) {
  s = a.search;
  s.boxes = input<float>(data, 0), s.scores = input<float>(data, 1);
  s.limit = 0;
  if (a.has_limit)
    s.limit = a.limit_type == DType::i32 ? input<int32_t>(data, 2)[0] : input<int64_t>(data, 2)[0];
  s.iou_threshold = a.has_iou_threshold ? input<float>(data, 3)[0] : 0;
  s.has_score_threshold = a.has_score_threshold;
  s.score_threshold = a.has_score_threshold ? input<float>(data, 4)[0] : 0;
  if (!(s.iou_threshold >= 0 && s.iou_threshold <= 1))
    return Status::fail("iou_threshold is %g, outside [0, 1]", double(s.iou_threshold));
  if (s.n_boxes > kMaxBoxes)
    return Status::fail("%ld boxes are given, and at most %ld can be compared", long(s.n_boxes),
                        long(kMaxBoxes));
  return {};
}

Status fill(const void* args, const Data& data, int64_t, int64_t) {
  Search s;
  Status status = read_limits(*static_cast<const NonMaxArgs*>(args), data, s);
  if (!status.ok()) return status;
  int64_t* y = output<int64_t>(data);
  if (data.resolved != nullptr && data.resolved->count > 0) {
    memcpy(y, data.resolved->numbers, size_t(data.resolved->count) * sizeof *y);
    return {};
  }
  search(s, [&](int64_t batch, int64_t label, int64_t box) {
    y[0] = batch, y[1] = label, y[2] = box;
    y += 3;
  });
  return {};
}

}  // namespace

Status non_max_suppression_sizes(const Call& call, const Data& data, View* out) {
  NonMaxArgs a;
  describe(call, a);
  Search s;
  Status status = read_limits(a, data, s);
  if (!status.ok()) return status;
  // The result is recorded in a buffer that doubles; if it cannot grow, the kernel searches again.
  int64_t count = 0, capacity = 0;
  int64_t* record = nullptr;
  bool records = data.resolved != nullptr;
  search(s, [&](int64_t batch, int64_t label, int64_t box) {
    if (records && count == capacity) {
      capacity = capacity == 0 ? 256 : 2 * capacity;
      record = data.resolved->resize(data.resolved->owner, 3 * capacity);
      records = record != nullptr;
    }
    if (records)
      record[3 * count] = batch, record[3 * count + 1] = label, record[3 * count + 2] = box;
    ++count;
  });
  if (data.resolved != nullptr)
    data.resolved->resize(data.resolved->owner, records ? 3 * count : 0);
  out->dims[0] = count, out->dims[1] = 3;
  return {};
}

Status non_max_suppression(const Call& call, Plan& plan) {
  auto* a = plan.make<NonMaxArgs>();
  plan.args = a;
  describe(call, *a);
  plan.add(fill, call.out[0].dims[0] > 0, 1000);
  return {};
}

}  // namespace sdx::SDX_ISA
