#include "cc/core/quantile_sketch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cc/core/first_position.h"
#include "cc/core/quantile_sketch_feature.h"
#include "cc/core/quantile_sketch_schedule.h"
#include "cc/core/quantile_sketch_workspace.h"

namespace twml {
namespace {

constexpr int64_t kFeaturesPerChunk = 256;
constexpr int64_t kPiece = 1 << 20;  // entries that are grouped by feature at a time

}  // namespace

QuantileSketch::QuantileSketch(const QuantileSketchOptions& options)
    : options_(options), schedule_(std::make_unique<SketchSchedule>(options.epsilon)) {
  initial_buffer_limit_ = SketchWorkspace(options_, *schedule_).BufferLimit();
}
QuantileSketch::~QuantileSketch() = default;

Status QuantileSketch::Make(const QuantileSketchOptions& options,
                            std::unique_ptr<QuantileSketch>* out) {
  constexpr double kMinEpsilon = 1e-5, kMaxEpsilon = 0.5;
  constexpr int64_t kMaxExactValues = 1 << 20;
  if (!(options.epsilon >= kMinEpsilon && options.epsilon <= kMaxEpsilon)) {
    return Invalid("epsilon must be in [", kMinEpsilon, ", ", kMaxEpsilon, "], got ",
                   options.epsilon);
  }
  if (options.exact_values < 0 || options.exact_values > kMaxExactValues) {
    return Invalid("exact_values must be in [0, ", kMaxExactValues, "], got ",
                   options.exact_values);
  }
  out->reset(new QuantileSketch(options));
  return Status();
}

SketchFeature& QuantileSketch::feature(int64_t f) const {
  return chunks_[f / kFeaturesPerChunk][f % kFeaturesPerChunk];
}

int64_t QuantileSketch::FindOrAdd(int64_t id) {
  const int64_t known = index_.Find(id);
  if (known >= 0) return known;
  // A feature with a number has its memory, also after an error.
  if (num_features() == static_cast<int64_t>(chunks_.size()) * kFeaturesPerChunk) {
    chunks_.push_back(std::make_unique<SketchFeature[]>(kFeaturesPerChunk));
  }
  const int64_t f = index_.FindOrAdd(id);
  feature(f).id = id;
  feature(f).buffer_limit = initial_buffer_limit_;
  return f;
}

int64_t QuantileSketch::bytes() const {
  int64_t total = index_.bytes();
  total += static_cast<int64_t>(chunks_.size() * kFeaturesPerChunk * sizeof(SketchFeature));
  for (int64_t f = 0; f < num_features(); ++f) {
    total += feature(f).capacity * static_cast<int64_t>(sizeof(float));
    if (feature(f).levels == nullptr) continue;
    total += static_cast<int64_t>(sizeof(SketchLevels) +
                                  feature(f).levels->runs.capacity() * sizeof(SketchRun));
  }
  return total;
}

Status QuantileSketch::Update(Span<const int64_t> ids, Span<const float> values,
                              Span<const float> weights, const ParallelFor& parallel_for) {
  const int64_t n = ids.size();
  if (values.size() != n) {
    return Invalid("values must have ", n, " items, one for each id, got ", values.size());
  }
  const bool has_weights = weights.data() != nullptr;
  if (has_weights && weights.size() != n) {
    return Invalid("weights must have ", n, " items, one for each id, got ", weights.size());
  }
  if (has_weights && !options_.weighted) {
    return Invalid("weights must not be given to a sketch that was created with weighted=False");
  }
  for (int64_t k = 0; has_weights && k < n; ++k) {
    if (!(weights[k] >= 0 && weights[k] <= kMaxSketchWeight)) {
      return Invalid("weights[", k, "] = ", weights[k], " is out of range [0, 2^31]");
    }
  }
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t size = std::min(kPiece, n - begin);
    const float* w = has_weights ? weights.data() + begin : nullptr;
    UpdatePiece({ids.data() + begin, size}, {values.data() + begin, size}, w, parallel_for);
  }
  return Status();
}

// Updates one feature after the other, because the memory of each feature lies elsewhere and cache
// misses cost more than the writes. The result does not depend on how the stream is divided into
// pieces.
void QuantileSketch::UpdatePiece(Span<const int64_t> ids, Span<const float> values,
                                 const float* weights, const ParallelFor& parallel_for) {
  const FeatureGroups piece = GroupByFeature(ids, values, weights, parallel_for);
  const int64_t num_touched = static_cast<int64_t>(piece.features.size());
  constexpr int64_t kCost = 20, kAhead = 8;  // nanoseconds per value; features to prefetch ahead
  const int64_t cost = kCost * (1 + ids.size() / std::max<int64_t>(1, num_touched));
  parallel_for(num_touched, cost, [&](int64_t begin, int64_t end) {
    SketchWorkspace work(options_, *schedule_);
    for (int64_t u = begin; u < end; ++u) {
      if (u + 2 * kAhead < end) __builtin_prefetch(&feature(piece.features[u + 2 * kAhead]), 1);
      if (u + kAhead < end) feature(piece.features[u + kAhead]).PrefetchEnd();
      SketchFeature& at = feature(piece.features[u]);
      const uint32_t first = piece.splits[u], last = piece.splits[u + 1];
      if (options_.weighted) {
        for (uint32_t k = first; k < last; ++k) at.Append(piece.values[k], piece.weights[k]);
      } else {
        at.Append(&piece.values[first], last - first);
      }
      work.FlushIfFull(&at);
    }
  });
}

// A stable counting sort.
QuantileSketch::FeatureGroups QuantileSketch::GroupByFeature(Span<const int64_t> ids,
                                                             Span<const float> values,
                                                             const float* weights,
                                                             const ParallelFor& parallel_for) {
  const int64_t n = ids.size();
  const Scratch<uint32_t> numbers = FeatureNumbers(ids, parallel_for);
  FeatureGroups piece;
  // All memory is allocated before the first offset changes, so that all are zero after an error.
  offset_.resize(num_features());
  const auto most = static_cast<size_t>(std::min(n, num_features()));
  piece.features.reserve(most);
  piece.splits.reserve(most + 1);
  piece.values = Scratch<float>(n);
  if (options_.weighted) piece.weights = Scratch<float>(n);
  for (int64_t k = 0; k < n; ++k) {
    if (offset_[numbers[k]]++ == 0) piece.features.push_back(numbers[k]);
  }
  piece.splits.assign(1, 0);
  for (const uint32_t f : piece.features) {
    piece.splits.push_back(piece.splits.back() + offset_[f]);
    offset_[f] = *(piece.splits.end() - 2);
  }
  for (int64_t k = 0; !options_.weighted && k < n; ++k) {
    piece.values[offset_[numbers[k]]++] = values[k];
  }
  for (int64_t k = 0; options_.weighted && k < n; ++k) {
    const uint32_t position = offset_[numbers[k]]++;
    piece.values[position] = values[k];
    piece.weights[position] = weights == nullptr ? 1.0f : weights[k];
  }
  for (const uint32_t f : piece.features) offset_[f] = 0;
  return piece;
}

// The index of each id's feature. New features are added.
Scratch<uint32_t> QuantileSketch::FeatureNumbers(Span<const int64_t> ids,
                                                 const ParallelFor& parallel_for) {
  constexpr int64_t kBlock = 64, kCost = 8;  // ids whose cache misses overlap; nanoseconds per id
  Scratch<uint32_t> numbers(ids.size());
  FirstPosition unknown;
  parallel_for(ids.size(), kCost, [&](int64_t begin, int64_t end) {
    uint64_t hash[kBlock];
    int64_t first_unknown = end;
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t size = std::min(kBlock, end - block);
      for (int64_t i = 0; i < size; ++i) {
        hash[i] = index_.Hash(ids[block + i]);
        index_.Prefetch(hash[i]);
      }
      for (int64_t i = 0; i < size; ++i) {
        const int64_t number = index_.Find(ids[block + i], hash[i]);
        numbers[block + i] = static_cast<uint32_t>(number);
        if (number < 0) first_unknown = std::min(first_unknown, block + i);
      }
    }
    if (first_unknown < end) unknown.Record(first_unknown);
  });
  for (int64_t k = unknown.found() ? unknown.value() : ids.size(); k < ids.size(); ++k) {
    if (static_cast<int32_t>(numbers[k]) < 0) numbers[k] = static_cast<uint32_t>(FindOrAdd(ids[k]));
  }
  return numbers;
}

Status QuantileSketch::CheckOptions(const QuantileSketch& other) const {
  if (other.options_.epsilon != options_.epsilon ||
      other.options_.exact_values != options_.exact_values ||
      other.options_.weighted != options_.weighted) {
    return Invalid("other must have the epsilon ", options_.epsilon, ", exact_values ",
                   options_.exact_values, " and weighted ", options_.weighted, ", got ",
                   other.options_.epsilon, ", ", other.options_.exact_values, " and ",
                   other.options_.weighted);
  }
  if (&other == this) return Invalid("other must be another sketch, got the sketch itself");
  return Status();
}

Status QuantileSketch::Merge(const QuantileSketch& other, const ParallelFor& parallel_for) {
  TWML_RETURN_IF_ERROR(CheckOptions(other));
  const std::vector<int64_t> order = other.AscendingOrder();
  const int64_t n = other.num_features();
  std::vector<int64_t> target(n);
  for (int64_t i = 0; i < n; ++i) target[i] = FindOrAdd(other.feature(order[i]).id);
  constexpr int64_t kCost = 20'000;
  parallel_for(n, kCost, [&](int64_t begin, int64_t end) {
    SketchWorkspace work(options_, *schedule_);
    for (int64_t i = begin; i < end; ++i) {
      const SketchFeature& from = other.feature(order[i]);
      SketchFeature& to = feature(target[i]);
      const double weight = to.weight + from.weight, missing = to.missing + from.missing;
      if (from.levels != nullptr) {
        work.Load(&to);
        work.Add(from);
        work.Store();
      }
      const float* items = from.items + from.num_sorted;
      if (options_.weighted) {
        for (uint32_t j = 0; j < from.num_buffered(); j += 2) to.Append(items[j], items[j + 1]);
      } else {
        to.Append(items, from.num_buffered());
      }
      to.weight = weight;
      to.missing = missing;
      work.FlushIfFull(&to);
    }
  });
  return Status();
}

Status QuantileSketch::Splice(QuantileSketch* other) {
  TWML_RETURN_IF_ERROR(CheckOptions(*other));
  for (int64_t f = 0; f < other->num_features(); ++f) {
    const int64_t id = other->feature(f).id;
    if (index_.Find(id) >= 0)
      return Invalid("other must not share features with this sketch, got feature ", id,
                     " in both");
  }
  for (int64_t f = 0; f < other->num_features(); ++f) {
    SketchFeature& from = other->feature(f);
    feature(FindOrAdd(from.id)).Swap(&from);
  }
  return Status();
}

std::vector<int64_t> QuantileSketch::AscendingOrder(int64_t first, int64_t last) const {
  std::vector<int64_t> order(num_features());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [this](int64_t a, int64_t b) { return feature(a).id < feature(b).id; });
  order.resize(std::clamp<int64_t>(last, 0, num_features()));
  order.erase(order.begin(), order.begin() + std::clamp<int64_t>(first, 0, order.size()));
  return order;
}

}  // namespace twml
