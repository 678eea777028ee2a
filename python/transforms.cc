#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/discretize.h"
#include "cc/core/hash.h"
#include "cc/core/max_norm.h"
#include "cc/core/online_standardize.h"
#include "python/bind.h"
#include "python/threads.h"

namespace twml {
namespace {

// Returns the choice with the name `got`.
template <class T>
T Choose(const std::string& got, const char* name,
         std::initializer_list<std::pair<const char*, T>> choices) {
  std::string names;
  for (const auto& [choice, value] : choices) {
    if (got == choice) return value;
    names += std::string(names.empty() ? "'" : ", '") + choice + "'";
  }
  throw py::value_error(std::string(name) + " must be one of " + names + ", got '" + got + "'");
}

NonFinitePolicy ParseNonFinite(const std::string& name) {
  return Choose<NonFinitePolicy>(
      name, "nonfinite", {{"error", NonFinitePolicy::kError}, {"zero", NonFinitePolicy::kZero}});
}

// Normalizes entries. Row is the type of a row of the state, whose shape and dtype were checked.
// infer and train are functions of the core.
template <class Row, class Options, class Infer, class Train>
py::array_t<float> Normalize(const ArrayLike& ids_object, const ArrayLike& values_object,
                             py::array* state, const std::optional<ArrayLike>& bias_object,
                             bool training, const Options& options, int num_threads, Infer infer,
                             Train train) {
  const auto ids = ToArray<int64_t>(ids_object, "ids");
  const auto values = ToArray<float>(values_object, "values");
  const auto bias = ToOptionalArray<float>(bias_object, "bias");
  RequireRank(ids, 1, "ids");
  RequireRank(values, 1, "values");
  if (bias) RequireRank(*bias, 1, "bias");
  const NormBatch<int64_t> batch{SpanOf(ids), SpanOf(values)};
  const Span<const float> bias_span = bias ? SpanOf(*bias) : Span<const float>();
  const Span<const float>* b = bias ? &bias_span : nullptr;
  const auto* rows = static_cast<const Row*>(state->data());
  auto* writable = training ? static_cast<Row*>(state->mutable_data()) : nullptr;
  const int64_t n = state->shape(0);
  py::array_t<float> y(values.size());
  float* out = y.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    std::vector<float> scale(values.size());
    const NormOutput outputs{out, scale.data()};
    const ParallelFor threads = Threads(num_threads);
    status = training ? train(batch, {writable, n}, b, options, threads, outputs)
                      : infer(batch, {rows, n}, b, options, threads, outputs);
  }
  RaiseIfError(status);
  return y;
}

py::array_t<float> NormalizeByMaximum(const ArrayLike& ids, const ArrayLike& values,
                                      InPlaceArray<float> max_abs,
                                      const std::optional<ArrayLike>& bias, bool training,
                                      float epsilon, const std::string& nonfinite, float decay,
                                      int num_threads) {
  RequireRank(max_abs, 1, "max_abs");
  RequireUsableInPlace<float>(max_abs, "max_abs", training);
  const MaxNormOptions options{epsilon, ParseNonFinite(nonfinite), decay};
  return Normalize<float>(ids, values, &max_abs, bias, training, options, num_threads,
                          MaxNorm<int64_t>, MaxNormTraining<int64_t>);
}

py::array_t<float> NormalizeByMoments(const ArrayLike& ids, const ArrayLike& values,
                                      InPlaceArray<double> moments,
                                      const std::optional<ArrayLike>& bias, bool training,
                                      float epsilon, float clip, double decay,
                                      const std::string& nonfinite, int num_threads) {
  RequireRank(moments, 2, "moments");
  RequireUsableInPlace<double>(moments, "moments", training);
  if (moments.shape(1) != 3) {
    RaiseIfError(Invalid("moments must have 3 columns, got ", moments.shape(1)));
  }
  const StandardizeOptions options{epsilon, clip, decay, ParseNonFinite(nonfinite)};
  return Normalize<Moments>(ids, values, &moments, bias, training, options, num_threads,
                            Standardize<int64_t>, StandardizeTraining<int64_t>);
}

using Discretizer = Status (*)(const Csr<int64_t>&, const Buckets&, const DiscretizeOptions&,
                               int64_t, const ParallelFor&, const AllocateEntries&, int64_t*);

// Boundaries that were checked and indexed once.
class PyBuckets {
 public:
  PyBuckets(const ArrayLike& feature_ids_object, const ArrayLike& boundaries_object,
            const ArrayLike& splits_object, int num_threads) {
    const auto feature_ids = ToArray<int64_t>(feature_ids_object, "feature_ids");
    const auto boundaries = ToArray<float>(boundaries_object, "boundaries");
    const auto boundary_splits = ToArray<int64_t>(splits_object, "boundary_splits");
    RequireRank(feature_ids, 1, "feature_ids");
    RequireRank(boundaries, 1, "boundaries");
    RequireRank(boundary_splits, 1, "boundary_splits");
    Status status;
    {
      py::gil_scoped_release release;
      status = Buckets::Make(SpanOf(feature_ids), SpanOf(boundaries), SpanOf(boundary_splits),
                             Threads(num_threads), &buckets_);
    }
    RaiseIfError(status);
  }
  const Buckets& get() const { return buckets_; }

 private:
  Buckets buckets_;
};

using DiscretizedBatch =
    py::typing::Tuple<Int64Array, py::typing::Optional<FloatArray>, Int64Array>;

DiscretizedBatch Discretize(Discretizer discretize, const PyBuckets& buckets,
                            const ArrayLike& ids_object,
                            const std::optional<ArrayLike>& values_object,
                            const ArrayLike& splits_object, const std::string& side,
                            const std::string& missing, const std::string& unknown, int64_t bits,
                            bool keep_inputs, int num_threads) {
  const auto ids = ToArray<int64_t>(ids_object, "ids");
  const auto values = ToOptionalArray<float>(values_object, "values");
  const auto row_splits = ToArray<int64_t>(splits_object, "row_splits");
  RequireRank(ids, 1, "ids");
  RequireRank(row_splits, 1, "row_splits");
  if (values) RequireRank(*values, 1, "values");
  const DiscretizeOptions options{
      Choose<Side>(side, "side", {{"left", Side::kLeft}, {"right", Side::kRight}}),
      Choose<MissingPolicy>(missing, "missing",
                            {{"bucket", MissingPolicy::kBucket}, {"drop", MissingPolicy::kDrop}}),
      Choose<UnknownPolicy>(unknown, "unknown",
                            {{"pass", UnknownPolicy::kPass},
                             {"drop", UnknownPolicy::kDrop},
                             {"error", UnknownPolicy::kError}}),
      keep_inputs};
  const Csr<int64_t> batch{SpanOf(ids), values ? SpanOf(*values) : Span<const float>(),
                           SpanOf(row_splits), !values};
  std::vector<int64_t> out_ids, out_splits(row_splits.size());
  std::vector<float> out_values;
  Status status;
  {
    py::gil_scoped_release release;
    const auto allocate = [&](int64_t number) -> EntriesOutput {
      out_ids.resize(number);
      out_values.resize(number);
      return {out_ids.data(), out_values.data()};
    };
    status = discretize(batch, buckets.get(), options, bits, Threads(num_threads), allocate,
                        out_splits.data());
  }
  RaiseIfError(status);
  return py::make_tuple(
      MoveToArray(std::move(out_ids)),
      values ? py::object(MoveToArray(std::move(out_values))) : py::object(py::none()),
      MoveToArray(std::move(out_splits)));
}

const char kPercentileDoc[] =
    R"(Discretizes values: an entry (feature, value) becomes (first id of the feature + bucket, 1).

The ids of the features follow each other. Each feature has one id per bucket, followed by one for
missing values unless they are dropped. Then come one id per feature if inputs are kept, and the ids
of entries that are passed through.

Args:
  ids: int64 [K], the feature ids of all entries.
  values: float32 [K], the values of the entries, or None if all are 1.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  feature_ids: int64 [F], the ids of the features, strictly increasing.
  boundaries: float32, the boundaries of all features, non-decreasing within each feature.
  boundary_splits: int64 [F + 1]. The boundaries of feature feature_ids[f] are items
    boundary_splits[f] to boundary_splits[f + 1] of boundaries.
  pass_through_bits: entries of unknown features are hashed to 2^pass_through_bits ids, in [1, 62].
  side: 'left' counts the boundaries that are < the value (intervals (a, b]), 'right' those that are
    <= the value (intervals [a, b)).
  missing: 'bucket' maps NaNs to a bucket of their feature, 'drop' removes their entries.
  unknown: entries of other features are passed through with their values ('pass'), are removed
    ('drop') or raise an error ('error').
  keep_inputs: whether each entry with a known feature and a value also appears unchanged, after
    its bucket and at an id of its own.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The new batch: ids int64 [L], values float32 [L] (None if values is None) and row_splits
  int64 [B + 1]. L = K unless entries are removed or inputs are kept.

Raises:
  ValueError: a feature is unknown with unknown='error', row_splits is not a valid sequence of
    offsets, an option is out of range, or the shape or the type of an argument is wrong.)";

const char kPercentileMethodDoc[] =
    R"(Discretizes values: an entry (feature, value) becomes (first id of the feature + bucket, 1).

The ids of the features follow each other. Each feature has one id per bucket, followed by one for
missing values unless they are dropped. Then come one id per feature if inputs are kept, and the ids
of entries that are passed through.

Args:
  ids: int64 [K], the feature ids of all entries.
  values: float32 [K], the values of the entries, or None if all are 1.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  pass_through_bits: entries of unknown features are hashed to 2^pass_through_bits ids, in [1, 62].
  side: 'left' counts the boundaries that are < the value (intervals (a, b]), 'right' those that are
    <= the value (intervals [a, b)).
  missing: 'bucket' maps NaNs to a bucket of their feature, 'drop' removes their entries.
  unknown: entries of other features are passed through with their values ('pass'), are removed
    ('drop') or raise an error ('error').
  keep_inputs: whether each entry with a known feature and a value also appears unchanged, after
    its bucket and at an id of its own.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The new batch: ids int64 [L], values float32 [L] (None if values is None) and row_splits
  int64 [B + 1]. L = K unless entries are removed or inputs are kept.

Raises:
  ValueError: a feature is unknown with unknown='error', row_splits is not a valid sequence of
    offsets, an option is out of range, or the shape or the type of an argument is wrong.)";

const char kHashingDoc[] =
    R"(Discretizes values: an entry (feature, value) becomes (hash of (feature, bucket), 1).

The id of a bucket does not depend on other features.

Args:
  ids: int64 [K], the feature ids of all entries.
  values: float32 [K], the values of the entries, or None if all are 1.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  feature_ids: int64 [F], the ids of the features, strictly increasing.
  boundaries: float32, the boundaries of all features, non-decreasing within each feature.
  boundary_splits: int64 [F + 1]. The boundaries of feature feature_ids[f] are items
    boundary_splits[f] to boundary_splits[f + 1] of boundaries.
  output_bits: the number of bits of the new ids, in [1, 62].
  side: 'left' counts the boundaries that are < the value (intervals (a, b]), 'right' those that are
    <= the value (intervals [a, b)).
  missing: 'bucket' maps NaNs to a bucket of their feature, 'drop' removes their entries.
  unknown: entries of other features are passed through with their values ('pass'), are removed
    ('drop') or raise an error ('error').
  keep_inputs: whether each entry with a known feature and a value also appears unchanged, after
    its bucket and at an id of its own.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The new batch: ids int64 [L], values float32 [L] (None if values is None) and row_splits
  int64 [B + 1]. L = K unless entries are removed or inputs are kept.

Raises:
  ValueError: a feature is unknown with unknown='error', row_splits is not a valid sequence of
    offsets, an option is out of range, or the shape or the type of an argument is wrong.)";

const char kHashingMethodDoc[] =
    R"(Discretizes values: an entry (feature, value) becomes (hash of (feature, bucket), 1).

The id of a bucket does not depend on other features.

Args:
  ids: int64 [K], the feature ids of all entries.
  values: float32 [K], the values of the entries, or None if all are 1.
  row_splits: int64 [B + 1], the CSR offsets of the rows.
  output_bits: the number of bits of the new ids, in [1, 62].
  side: 'left' counts the boundaries that are < the value (intervals (a, b]), 'right' those that are
    <= the value (intervals [a, b)).
  missing: 'bucket' maps NaNs to a bucket of their feature, 'drop' removes their entries.
  unknown: entries of other features are passed through with their values ('pass'), are removed
    ('drop') or raise an error ('error').
  keep_inputs: whether each entry with a known feature and a value also appears unchanged, after
    its bucket and at an id of its own.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  The new batch: ids int64 [L], values float32 [L] (None if values is None) and row_splits
  int64 [B + 1]. L = K unless entries are removed or inputs are kept.

Raises:
  ValueError: a feature is unknown with unknown='error', row_splits is not a valid sequence of
    offsets, an option is out of range, or the shape or the type of an argument is wrong.)";

// Binds a discretizer twice: as a function of the batch and the boundaries, and as a method of
// Buckets.
template <auto kDiscretize>
void BindDiscretizer(py::module_& m, py::class_<PyBuckets>& buckets_class, const char* name,
                     const char* bits, const char* doc, const char* method_doc) {
  using py::literals::operator""_a;
  m.def(
      name,
      [](const ArrayLike& ids, const std::optional<ArrayLike>& values, const ArrayLike& row_splits,
         const ArrayLike& feature_ids, const ArrayLike& boundaries,
         const ArrayLike& boundary_splits, int64_t bits, const std::string& side,
         const std::string& missing, const std::string& unknown, bool keep_inputs,
         int num_threads) {
        const PyBuckets buckets(feature_ids, boundaries, boundary_splits, num_threads);
        return Discretize(kDiscretize, buckets, ids, values, row_splits, side, missing, unknown,
                          bits, keep_inputs, num_threads);
      },
      "ids"_a, "values"_a.none(true), "row_splits"_a, "feature_ids"_a, "boundaries"_a,
      "boundary_splits"_a, py::kw_only(), IntArg(bits), "side"_a = "left", "missing"_a = "bucket",
      "unknown"_a = "pass", "keep_inputs"_a = false, IntArg("num_threads") = 0, doc);
  buckets_class.def(
      name,
      [](const PyBuckets& buckets, const ArrayLike& ids, const std::optional<ArrayLike>& values,
         const ArrayLike& row_splits, int64_t bits, const std::string& side,
         const std::string& missing, const std::string& unknown, bool keep_inputs,
         int num_threads) {
        return Discretize(kDiscretize, buckets, ids, values, row_splits, side, missing, unknown,
                          bits, keep_inputs, num_threads);
      },
      "ids"_a, "values"_a.none(true), "row_splits"_a, py::kw_only(), IntArg(bits),
      "side"_a = "left", "missing"_a = "bucket", "unknown"_a = "pass", "keep_inputs"_a = false,
      IntArg("num_threads") = 0, method_doc);
}

py::array_t<int64_t> HashArray(const ArrayLike& ids_object, int64_t bits, int64_t salt,
                               int num_threads) {
  const auto ids = ToArray<int64_t>(ids_object, "ids");
  py::array_t<int64_t> out(std::vector<py::ssize_t>(ids.shape(), ids.shape() + ids.ndim()));
  int64_t* data = out.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = HashIds(SpanOf(ids), bits, salt, Threads(num_threads), data);
  }
  RaiseIfError(status);
  return out;
}

}  // namespace

void BindTransforms(py::module_& m) {
  using py::literals::operator""_a;
  m.def("max_norm", &NormalizeByMaximum, "ids"_a, "values"_a, py::arg("max_abs").noconvert(),
        "bias"_a = py::none(), "training"_a = false, py::kw_only(), "epsilon"_a = 1e-6f,
        "nonfinite"_a = "error", "decay"_a = 1.0f, IntArg("num_threads") = 0,
        R"(Normalizes values by the largest absolute value seen of their feature.

y[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]] with m = max_abs[ids[k]].

Args:
  ids: int64 [K], the ids of all entries.
  values: float32 [K], one value for each id.
  max_abs: float32 [N], the largest absolute value of each feature. Training modifies it in place.
  bias: float32 [N], which is added to the normalized values, or None.
  training: whether max_abs is first updated with the values of the batch.
  epsilon: lower bound of the divisor, positive.
  nonfinite: 'error' raises an error for NaNs and infinities, 'zero' treats them as 0.
  decay: in (0, 1]. In training, max_abs of each feature in the batch is multiplied by it before it
    is updated.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [K], the normalized values.

Raises:
  ValueError: an id is not in [0, N), a value is not finite with nonfinite='error', an option is
    out of range, or the shape or the type of an argument is wrong. max_abs is then unchanged.
  TypeError: max_abs is not a NumPy array.)");
  m.def("online_standardize", &NormalizeByMoments, "ids"_a, "values"_a,
        py::arg("moments").noconvert(), "bias"_a = py::none(), "training"_a = false, py::kw_only(),
        "epsilon"_a = 1e-6f, "clip"_a = 10.0f, "decay"_a = 1.0, "nonfinite"_a = "error",
        IntArg("num_threads") = 0,
        R"(Standardizes values with the running mean and standard deviation of their feature.

y[k] = clip((values[k] - mean) / max(sd, epsilon), -clip, clip) + bias[ids[k]], where mean and
sd = sqrt(M2 / count) belong to feature ids[k]. A NaN, and every value of a feature that has not
been seen, gives y[k] = bias[ids[k]]. Moments are merged by the formulas of Chan, Golub and LeVeque
(1979).

Args:
  ids: int64 [K], the ids of all entries.
  values: float32 [K], one value for each id.
  moments: float64 [N, 3], the columns count, mean and M2 (the sum of squared deviations from the
    mean) of each feature. Training modifies it in place.
  bias: float32 [N], which is added to the standardized values, or None.
  training: whether the values of the batch are first added to the moments.
  epsilon: lower bound of the standard deviation, positive.
  clip: largest absolute value of a result before the bias is added, positive.
  decay: in (0, 1]. In training, the weight of earlier batches of each feature in the batch is
    multiplied by it.
  nonfinite: 'error' raises an error for infinities, 'zero' treats them as missing.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  float32 [K], the standardized values.

Raises:
  ValueError: an id is not in [0, N), a value is infinite with nonfinite='error', an option is out
    of range, or the shape or the type of an argument is wrong. moments is then unchanged.
  TypeError: moments is not a NumPy array.)");
  py::class_<PyBuckets> buckets_class(
      m, "Buckets",
      R"(The boundaries of features, validated and indexed once and used for many batches.

Args:
  feature_ids: int64 [F], the ids of the features, strictly increasing.
  boundaries: float32, the boundaries of all features, non-decreasing within each feature and
    without NaNs.
  boundary_splits: int64 [F + 1]. The boundaries of feature feature_ids[f] are items
    boundary_splits[f] to boundary_splits[f + 1] of boundaries. n boundaries make n + 1 buckets.
  num_threads: maximum number of threads; 0 means one per core.

Raises:
  ValueError: the boundaries are not as described above.)");
  buckets_class.def(py::init<const ArrayLike&, const ArrayLike&, const ArrayLike&, int>(),
                    "feature_ids"_a, "boundaries"_a, "boundary_splits"_a, py::kw_only(),
                    IntArg("num_threads") = 0);
  BindDiscretizer<&PercentileDiscretize<int64_t>>(m, buckets_class, "percentile_discretize",
                                                  "pass_through_bits", kPercentileDoc,
                                                  kPercentileMethodDoc);
  BindDiscretizer<&HashingDiscretize<int64_t>>(m, buckets_class, "hashing_discretize",
                                               "output_bits", kHashingDoc, kHashingMethodDoc);
  m.def("hash_ids", &HashArray, "ids"_a, IntArg("bits"), IntArg("salt") = 0, py::kw_only(),
        IntArg("num_threads") = 0,
        R"(Hashes ids into [0, 2^bits).

The hash is item `id` of a SplitMix64 stream (Steele, Lea, Flood, 2014) that is seeded with `salt`.

Args:
  ids: int64, any ids in an array of any shape.
  bits: the number of bits of the result, in [1, 62].
  salt: different salts give independent hashes.
  num_threads: maximum number of threads; 0 means one per core.

Returns:
  int64 with the shape of ids.

Raises:
  ValueError: bits is out of range, or ids is not an array of integers.)");
}

}  // namespace twml
