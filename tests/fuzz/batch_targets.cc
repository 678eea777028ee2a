// Batches, tables and trees that kernels read, against loops without blocks and threads.
#include <algorithm>
#include <cmath>

#include "cc/core/discretize.h"
#include "cc/core/field_rows.h"
#include "cc/core/find_keys.h"
#include "cc/core/gather_dot.h"
#include "cc/core/max_norm.h"
#include "cc/core/mdl_boundaries.h"
#include "cc/core/online_standardize.h"
#include "cc/core/sparse_linear.h"
#include "cc/core/tree_sums.h"
#include "cc/core/update_rules.h"
#include "tests/fuzz/targets.h"

namespace twml::fuzz {
namespace {

bool Same(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0 || (a != a && b != b); }

bool AllSame(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), Same);
}

// Arrays that are a batch or nearly one: any sizes, ids and row splits.
struct AnyBatch {
  std::vector<int64_t> ids, row_splits;
  std::vector<float> values;
  bool binary = false;
  bool valid = true;  // but for the ids

  explicit AnyBatch(Input* input) {
    const auto kind = input->Below(8);
    binary = kind % 2 == 1;
    const int64_t rows = input->Below(7);
    row_splits = {0};
    for (int64_t b = 0; b < rows; ++b) row_splits.push_back(row_splits.back() + input->Below(20));
    const int64_t n = row_splits.back();
    for (int64_t k = 0; k < n; ++k) {
      ids.push_back(input->Id());
      if (!binary) values.push_back(input->Take<float>());
    }
    if (kind < 6) return;  // the others have an array of another size, or any row splits
    valid = false;
    const int64_t wrong = input->Below(4);
    if (wrong == 0) ids.push_back(1);
    if (wrong == 1) values.push_back(1);
    if (wrong == 2) row_splits.clear();
    if (wrong < 3) return;
    for (int64_t& split : row_splits) split = input->Id();
    valid = row_splits[0] == 0 && row_splits.back() == n &&
            std::is_sorted(row_splits.begin(), row_splits.end());
  }
  bool in_range(int64_t dim) const {
    return std::all_of(ids.begin(), ids.end(), [=](int64_t id) { return id >= 0 && id < dim; });
  }
  Csr<int64_t> csr() const { return {ids, values, row_splits, binary}; }
  std::vector<int32_t> narrow() const {
    std::vector<int32_t> out;
    for (const int64_t id : ids) out.push_back(static_cast<int32_t>(id));
    return out;
  }
};

std::vector<float> Floats(Input* input, int64_t n) {
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(input->Take<int8_t>()) / 8;
  return out;
}

void Products(Input input) {
  const int64_t dim = 1 + input.Below(24), cols = input.Below(20);
  const std::vector<float> table = Floats(&input, dim * cols);
  const AnyBatch batch(&input);
  const int64_t rows = std::max<int64_t>(0, static_cast<int64_t>(batch.row_splits.size()) - 1);
  const Matrix<const float> weights = {table.data(), dim, cols};
  std::vector<float> out(rows * cols + 1), other(rows * cols + 1);
  const bool ok = SparseLinear(batch.csr(), weights, Serial, out.data()).ok();
  TWML_REQUIRE(ok == (batch.valid && batch.in_range(dim)));
  const std::vector<float> grad = Floats(&input, rows * cols);
  const Matrix<const float> top = {grad.data(), rows, cols};
  std::vector<float> dvalues(batch.ids.size() + 1), dother(batch.ids.size() + 1);
  std::vector<int64_t> ids;
  std::vector<float> sums;
  const AllocateRows<int64_t> allocate = [&](int64_t n) {
    ids.resize(n + 1);
    sums.resize(n * cols + 1);
    return RowsOutput<int64_t>{ids.data(), sums.data()};
  };
  const bool backward = SparseLinearWeightsGrad(batch.csr(), dim, top, Serial, allocate).ok();
  TWML_REQUIRE(backward == ok);
  TWML_REQUIRE(SparseLinearValuesGrad(batch.csr(), weights, top, Serial, dvalues.data()).ok() ==
               ok);
  if (!ok) return;
  TWML_REQUIRE(SparseLinear(batch.csr(), weights, Backwards, other.data()).ok());
  TWML_REQUIRE(AllSame(out, other));
  const std::vector<int32_t> narrow = batch.narrow();
  const Csr<int32_t> same = {narrow, batch.values, batch.row_splits, batch.binary};
  TWML_REQUIRE(SparseLinear(same, weights, Backwards, other.data()).ok());
  TWML_REQUIRE(AllSame(out, other));
  TWML_REQUIRE(SparseLinearValuesGrad(same, weights, top, Backwards, dother.data()).ok());
  TWML_REQUIRE(AllSame(dvalues, dother));
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t c = 0; c < cols; ++c) {
      double sum = 0, size = 0;
      for (int64_t k = batch.row_splits[b]; k < batch.row_splits[b + 1]; ++k) {
        const double x = batch.binary ? 1 : batch.values[k];
        sum += x * table[batch.ids[k] * cols + c];
        size += std::abs(x * table[batch.ids[k] * cols + c]);
      }
      if (!(size < 1e30)) continue;  // partial sums may overflow a float
      TWML_REQUIRE(std::abs(out[b * cols + c] - sum) <= 1e-5 * size + 1e-30);
    }
  }
}

void Normalizations(Input input) {
  const int64_t dim = 1 + input.Below(24);
  std::vector<float> state = input.Array<float>(dim), bias = Floats(&input, dim);
  std::vector<Moments> moments(dim);
  for (Moments& m : moments) m = {input.Take<double>(), input.Take<double>(), input.Take<double>()};
  MaxNormOptions max_norm;
  StandardizeOptions standardize;
  if (input.Below(4) == 0) {
    max_norm.epsilon = standardize.epsilon = input.Take<float>();
    max_norm.decay = input.Take<float>();
    standardize.decay = input.Take<double>();
    standardize.clip = input.Take<float>();
  }
  max_norm.nonfinite = standardize.nonfinite =
      input.Below(2) == 1 ? NonFinitePolicy::kZero : NonFinitePolicy::kError;
  AnyBatch batch(&input);
  batch.values.resize(batch.ids.size());
  const NormBatch<int64_t> entries = {batch.ids, batch.values};
  const Span<const float> offsets = bias;
  std::vector<float> out(batch.ids.size() + 1), scale(batch.ids.size() + 1);
  const NormOutput to = {out.data(), scale.data()};
  const auto before = state;
  const bool kept = MaxNorm<int64_t>(entries, state, &offsets, max_norm, Serial, to).ok();
  const bool ok = MaxNormTraining<int64_t>(entries, state, &offsets, max_norm, Backwards, to).ok();
  TWML_REQUIRE(ok == kept);
  if (!ok) TWML_REQUIRE(AllSame(state, before));
  const bool read = Standardize<int64_t>(entries, moments, &offsets, standardize, Serial, to).ok();
  const bool wrote =
      StandardizeTraining<int64_t>(entries, moments, &offsets, standardize, Backwards, to).ok();
  TWML_REQUIRE(read == wrote);
}

void Discretizers(Input input) {
  const int64_t n = input.Below(5);
  std::vector<int64_t> features, splits = {0};
  std::vector<float> boundaries;
  for (int64_t f = 0; f < n; ++f) {
    features.push_back(input.Id());
    for (int64_t left = input.Below(24); left > 0; --left)
      boundaries.push_back(input.Take<float>());
    splits.push_back(static_cast<int64_t>(boundaries.size()));
  }
  if (input.Below(2) == 1) {
    std::sort(features.begin(), features.end());
    for (int64_t f = 0; f < n; ++f) {
      auto* const first = boundaries.data() + splits[f];
      std::replace_if(first, boundaries.data() + splits[f + 1], [](float x) { return x != x; }, 0);
      std::sort(first, boundaries.data() + splits[f + 1]);
    }
  } else if (input.Below(2) == 1) {
    for (int64_t& split : splits) split = input.Id();
  }
  Buckets buckets;
  if (!Buckets::Make(features, boundaries, splits, Serial, &buckets).ok()) return;
  const auto side = input.Below(2) == 1 ? Side::kLeft : Side::kRight;
  DiscretizeOptions options;
  options.side = side;
  options.missing = static_cast<MissingPolicy>(input.Below(2));
  options.unknown = static_cast<UnknownPolicy>(input.Below(3));
  options.keep_inputs = input.Below(2) == 1;
  const int64_t bits = input.Below(66);
  const AnyBatch batch(&input);
  const size_t count = std::min(batch.ids.size(), batch.values.size());
  for (size_t k = 0; k < count; ++k) {
    int32_t f;
    int64_t got;
    const bool known = buckets.Find(&batch.ids[k], 1, &f);
    const auto at = std::find(features.begin(), features.end(), batch.ids[k]);
    TWML_REQUIRE(f == at - features.begin() && known == (at != features.end()));
    buckets.Search(side, &f, &batch.values[k], 1, &got);
    int64_t want = 0;
    for (int64_t i = known ? splits[f] : 0; known && i < splits[f + 1]; ++i) {
      want +=
          side == Side::kLeft ? boundaries[i] < batch.values[k] : boundaries[i] <= batch.values[k];
    }
    TWML_REQUIRE(got == want);
  }
  for (const bool hashed : {false, true}) {
    std::vector<int64_t> ids, row_splits(batch.row_splits.size() + 1), other_ids;
    std::vector<float> values, other_values;
    const auto to = [](std::vector<int64_t>* i, std::vector<float>* v) -> AllocateEntries {
      return [i, v](int64_t number) {
        i->resize(number + 1);
        v->resize(number + 1);
        return EntriesOutput{i->data(), v->data()};
      };
    };
    const auto run = hashed ? HashingDiscretize<int64_t> : PercentileDiscretize<int64_t>;
    const bool ok =
        run(batch.csr(), buckets, options, bits, Serial, to(&ids, &values), row_splits.data()).ok();
    const bool again = run(batch.csr(), buckets, options, bits, Backwards,
                           to(&other_ids, &other_values), row_splits.data())
                           .ok();
    TWML_REQUIRE(ok == again);
    if (!ok) continue;
    TWML_REQUIRE(ids == other_ids && AllSame(values, other_values));
    row_splits.pop_back();
    TWML_REQUIRE(CheckRowSplits(row_splits, static_cast<int64_t>(ids.size()) - 1).ok());
    for (size_t k = 0; k + 1 < ids.size(); ++k) TWML_REQUIRE(ids[k] >= 0);
  }
}

void Trees(Input input) {
  const int64_t nodes = input.Below(12), columns = input.Below(4), rows = input.Below(20);
  const int64_t ensembles = input.Below(3), trees = input.Below(4), depth = input.Below(9);
  std::vector<int32_t> features(nodes), children(2 * nodes), roots(ensembles * trees);
  std::vector<uint8_t> missing_left(nodes);
  const auto number = [&] { return static_cast<int32_t>(input.Id()); };
  for (int32_t& f : features) f = columns > 0 ? std::abs(number() % 8) % 5 : number();
  for (int32_t& c : children) c = number();
  for (int32_t& r : roots) r = number();
  for (uint8_t& m : missing_left) m = input.Take<uint8_t>() % 2;
  const std::vector<float> thresholds = input.Array<float>(nodes), values = Floats(&input, nodes);
  const std::vector<float> x = input.Array<float>(rows * columns);
  std::vector<int64_t> chosen(input.Below(2) == 1 ? rows : 0);
  for (int64_t& e : chosen) e = input.Below(3);
  const TreeNodes forest = {features, thresholds, missing_left, children, values};
  const Matrix<const int32_t> top = {roots.data(), ensembles, trees};
  std::vector<float> sums(rows + 1), other(rows + 1);
  const Matrix<const float> matrix = {x.data(), rows, columns};
  if (!TreeSums(matrix, chosen, forest, top, depth, Serial, sums.data()).ok()) return;
  TWML_REQUIRE(TreeSums(matrix, chosen, forest, top, depth, Backwards, other.data()).ok());
  TWML_REQUIRE(AllSame(sums, other));
  for (int64_t r = 0; r < rows; ++r) {
    double want = 0;
    for (int64_t e = 0; e < ensembles; ++e) {
      if (!chosen.empty() && chosen[r] != e) continue;
      for (int64_t t = 0; t < trees; ++t) {
        int32_t at = roots[e * trees + t];
        for (int64_t d = 0; d < depth; ++d) {
          const float value = x[r * columns + features[at]];
          const bool left = value != value ? missing_left[at] != 0 : value <= thresholds[at];
          at = children[2 * at + (left ? 0 : 1)];
        }
        want += values[at];
      }
    }
    if (chosen.empty() && ensembles > 0) want /= static_cast<double>(ensembles);
    TWML_REQUIRE(std::abs(sums[r] - want) <= 1e-3);
  }
}

void Keys(Input input) {
  std::vector<int64_t> known, keys;
  for (int64_t left = input.Below(40); left > 0; --left) known.push_back(input.Id());
  const bool sorted = input.Below(4) > 0;
  if (sorted) {
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
  }
  while (!input.done()) keys.push_back(input.Id());
  std::vector<int64_t> got(keys.size()), serial(keys.size());
  FindKeys(known, keys, Backwards, got.data());
  FindKeysSerially(known, keys, serial.data());
  for (size_t i = 0; sorted && i < keys.size(); ++i) {
    const auto at = std::find(known.begin(), known.end(), keys[i]);
    TWML_REQUIRE(got[i] == serial[i]);
    TWML_REQUIRE(got[i] == (at == known.end() ? -1 : at - known.begin()));
  }
}

void Updates(Input input) {
  const auto rule = static_cast<UpdateRule>(input.Below(kNumUpdateRules));
  const UpdateRuleInfo& info = kUpdateRules[static_cast<int>(rule)];
  const int64_t dim = 1 + input.Below(8), cols = input.Below(10);
  std::vector<float> hyper(info.num_hyper);
  for (float& h : hyper) {
    h = input.Below(4) == 0 ? input.Take<float>() : static_cast<float>(input.Below(100)) / 100;
  }
  std::vector<int64_t> ids;
  for (int64_t left = input.Below(9); left > 0; --left) ids.push_back(input.Id());
  std::vector<float> table = input.Array<float>(dim * cols);
  std::vector<float> slots[kMaxSlots];
  for (auto& slot : slots) slot = input.Array<float>(dim * cols);
  const std::vector<float> grad = input.Array<float>(static_cast<int64_t>(ids.size()) * cols);
  const Matrix<const float> rows = {grad.data(), static_cast<int64_t>(ids.size()), cols};
  const auto before = table;
  OptimizedTable<float> to;
  to.weights = {table.data(), dim, cols};
  to.rule = rule;
  to.hyper = hyper.data();
  for (int s = 0; s < info.num_slots; ++s) to.slots[s] = slots[s].data();
  const bool ok = ApplyRows<int64_t>(ids, rows, to, Backwards).ok();
  for (int64_t row = 0; row < dim; ++row) {
    if (ok && std::find(ids.begin(), ids.end(), row) != ids.end()) continue;
    for (int64_t c = 0; c < cols; ++c) {
      TWML_REQUIRE(Same(table[row * cols + c], before[row * cols + c]));
    }
  }
}

void Fields(Input input) {
  std::vector<int64_t> num_rows;
  for (int64_t left = input.Below(5); left > 0; --left) num_rows.push_back(input.Id());
  FieldRows fields;
  const int64_t first = input.Below(3);
  if (!FieldRows::Make(num_rows, first, &fields).ok()) return;
  std::vector<int64_t> ids;
  while (!input.done() && ids.size() < 100) ids.push_back(input.Id());
  ids.resize(num_rows.empty() ? 0 : ids.size() / num_rows.size() * num_rows.size());
  std::vector<int64_t> rows(ids.size());
  fields.Find<int64_t>(ids, Backwards, rows.data());
  int64_t begin = first;
  for (size_t f = 0; f < num_rows.size(); begin += num_rows[f++]) {
    for (size_t k = f; k < ids.size(); k += num_rows.size()) {
      const int64_t within = ids[k] < 0 ? 0 : 1 + ids[k] % (num_rows[f] - 1);
      TWML_REQUIRE(rows[k] == begin + within);
    }
  }
  const std::vector<double> counts = input.Array<double>(12);
  MdlCutPoints(counts, 3);
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const uint8_t step : {1, 3, 7}) {
    Output out;
    for (int i = 0; i < 300; ++i) out.Put(static_cast<uint8_t>(i * step % 24));
    seeds.push_back(out.bytes());
  }
  return seeds;
}

}  // namespace

std::vector<Target> BatchTargets() {
  return {{"products", Products, Seeds},
          {"normalizations", Normalizations, Seeds},
          {"discretizers", Discretizers, Seeds},
          {"trees", Trees, Seeds},
          {"keys", Keys, Seeds},
          {"updates", Updates, Seeds},
          {"fields", Fields, Seeds}};
}

}  // namespace twml::fuzz
