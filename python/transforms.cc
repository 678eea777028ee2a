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

// The choice that `got` names.
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

// Row: what is known of a feature, a row of the state, which has been checked. infer and train are
// the core's functions.
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
                                      py::array max_abs, const std::optional<ArrayLike>& bias,
                                      bool training, float epsilon, const std::string& nonfinite,
                                      float decay, int num_threads) {
  RequireRank(max_abs, 1, "max_abs");
  RequireUsableInPlace<float>(max_abs, "max_abs", training);
  const MaxNormOptions options{epsilon, ParseNonFinite(nonfinite), decay};
  return Normalize<float>(ids, values, &max_abs, bias, training, options, num_threads,
                          MaxNorm<int64_t>, MaxNormTraining<int64_t>);
}

py::array_t<float> NormalizeByMoments(const ArrayLike& ids, const ArrayLike& values,
                                      py::array moments, const std::optional<ArrayLike>& bias,
                                      bool training, float epsilon, float clip, double decay,
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

// Boundaries, checked and indexed.
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

py::tuple Discretize(Discretizer discretize, const PyBuckets& buckets, const ArrayLike& ids_object,
                     const std::optional<ArrayLike>& values_object, const ArrayLike& splits_object,
                     const std::string& side, const std::string& missing,
                     const std::string& unknown, int64_t bits, bool keep_inputs, int num_threads) {
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

// As a function of everything, and as a method of boundaries indexed before.
template <auto kDiscretize>
void BindDiscretizer(py::module_& m, py::class_<PyBuckets>& kept, const char* name,
                     const char* bits, const char* doc) {
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
  kept.def(
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
      IntArg("num_threads") = 0, "As the function of this name.");
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
        "y[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]] with m = max_abs[ids[k]], "
        "which training first raises in place to the batch's largest |values|. -> [K]");
  m.def("online_standardize", &NormalizeByMoments, "ids"_a, "values"_a,
        py::arg("moments").noconvert(), "bias"_a = py::none(), "training"_a = false, py::kw_only(),
        "epsilon"_a = 1e-6f, "clip"_a = 10.0f, "decay"_a = 1.0, "nonfinite"_a = "error",
        IntArg("num_threads") = 0,
        "y[k] = clip((values[k] - mean) / max(sd, epsilon), -clip, clip) + bias[ids[k]] with the "
        "moments [N, 3] (count, mean, M2), which training first updates in place. -> [K]");
  py::class_<PyBuckets> kept(
      m, "Buckets", "The boundaries of features, checked and indexed once, for many batches.");
  kept.def(py::init<const ArrayLike&, const ArrayLike&, const ArrayLike&, int>(), "feature_ids"_a,
           "boundaries"_a, "boundary_splits"_a, py::kw_only(), IntArg("num_threads") = 0);
  BindDiscretizer<&PercentileDiscretize<int64_t>>(
      m, kept, "percentile_discretize", "pass_through_bits",
      "Each (feature, value) to (offset of the feature + bucket, 1): (ids, values, row_splits). "
      "boundary_splits[f] .. boundary_splits[f + 1] are the boundaries of feature_ids[f].");
  BindDiscretizer<&HashingDiscretize<int64_t>>(
      m, kept, "hashing_discretize", "output_bits",
      "percentile_discretize with ids hashed from (feature, bucket) into [0, 2^output_bits).");
  m.def("hash_ids", &HashArray, "ids"_a, IntArg("bits"), IntArg("salt") = 0, py::kw_only(),
        IntArg("num_threads") = 0,
        "A 64-bit mix of (salt, id), reduced to [0, 2^bits). -> the shape of ids");
}

}  // namespace twml
