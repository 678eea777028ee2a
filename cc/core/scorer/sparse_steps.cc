// Steps on sparse batches: the sparse linear layer and what is done to ids and values before it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cc/core/discretize.h"
#include "cc/core/dynamic_lookup.h"
#include "cc/core/hash.h"
#include "cc/core/parallel.h"
#include "cc/core/scorer/step_reader.h"
#include "cc/core/scorer/table.h"
#include "cc/core/simd_dispatch.h"

namespace twml::scorer {
namespace {

// y[b] = activation(sum of values[k] * table[ids[k]] over row b + bias)
class SparseLinearStep : public Step {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    reader.BatchInput(0);
    reader.DenseOutput(0, Type::kFloat);
    auto step = std::make_unique<SparseLinearStep>();
    step->table_ = Table::Read(reader);
    ArrayFile bias;
    if (reader.OptionalArray("bias", ItemType::kFloat32, 1, &bias)) {
      step->bias_.assign(bias.items<float>().begin(), bias.items<float>().end());
      if (bias.size() != step->table_.dim()) reader.Fail("must have one bias for each unit");
    }
    return step;
  }

  SplitEntries split_entries() const override { return SplitEntries::kSums; }
  bool reads_files() const override { return table_.in_file(); }

  Status Shape(Shapes* shapes) const override { return shapes->Set(out[0], {table_.dim()}); }

  Status Collect(const Frame& frame, FetchedRows* fetched) const override {
    TWML_RETURN_IF_ERROR(CheckEntryIds(frame, in[0], table_.rows()));
    const RowSplits splits = frame.Splits(in[2]);
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    const auto* const values = frame.Entries<float>(in[1]);
    for (int64_t r = 0; r < frame.rows; ++r) {
      const int64_t k = splits.begin(r);
      table_.CollectSum(ids + k, values == nullptr ? nullptr : values + k, splits.end(r) - k,
                        fetched);
    }
    return Status();
  }

  Status Run(const Frame& frame) const override {
    TWML_RETURN_IF_ERROR(CheckEntryIds(frame, in[0], table_.rows()));
    const RowSplits splits = frame.Splits(in[2]);
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    const auto* const values = frame.Entries<float>(in[1]);
    const int64_t total = splits.num_entries(), dim = table_.dim();
    const auto y = frame.Out<float>(out[0]);
    TableRows rows(table_, frame);
    const float* const base =
        frame.bases == nullptr ? nullptr : static_cast<const float*>(frame.bases[out[0]].data);
    for (int64_t r = 0; r < frame.rows; ++r) {
      const int64_t k = splits.begin(r);
      rows.Sum(ids + k, values == nullptr ? nullptr : values + k, splits.end(r) - k, total - k,
               y[r]);
      if (frame.is_base) continue;
      if (base != nullptr) {
        for (int64_t d = 0; d < dim; ++d) y[r][d] += base[d];
      }
      if (!bias_.empty()) {
        for (int64_t d = 0; d < dim; ++d) y[r][d] += bias_[d];
      }
      if (activation_ != Activation::kLinear) {
        GetScoringKernels().activate(activation_, y[r], dim, y[r]);
      }
    }
    return Status();
  }

  bool Fuse(Activation activation) override {
    if (activation_ != Activation::kLinear) return false;
    activation_ = activation;
    return true;
  }

  int64_t CostOfRow(const Shapes&) const override { return 200 + table_.dim(); }

 private:
  Table table_;
  std::vector<float> bias_;  // empty: none
  Activation activation_ = Activation::kLinear;
};

// A step that makes a value of each entry, or an id.
class EntryStep : public Step {
 public:
  SplitEntries split_entries() const override { return SplitEntries::kEach; }
  Status Shape(Shapes*) const override { return Status(); }
};

// clip(value / max(max_abs[id], epsilon), -1, 1) + bias[id]; see max_norm.h.
class MaxNormStep : public EntryStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    reader.BatchInput(0);
    reader.EntriesOutput(0, Form::kValues, 0);
    auto step = std::make_unique<MaxNormStep>();
    const ArrayFile max_abs = reader.Array("max_abs", ItemType::kFloat32, 1);
    ArrayFile bias;
    const bool has_bias = reader.OptionalArray("bias", ItemType::kFloat32, 1, &bias);
    const auto epsilon = static_cast<float>(reader.Number("epsilon"));
    step->zero_ = reader.Choice("nonfinite", {"error", "zero"}) == 1;
    if (reader.ok() && has_bias && bias.size() != max_abs.size()) {
      reader.Fail("must have a bias for each id");
    }
    if (!reader.ok()) return nullptr;
    step->ids_.resize(max_abs.size());
    for (int64_t i = 0; i < max_abs.size(); ++i) {
      step->ids_[i].max_abs = std::max(max_abs.items<float>()[i], epsilon);
      step->ids_[i].bias = has_bias ? bias.items<float>()[i] : 0.0f;
    }
    return step;
  }

  Status Run(const Frame& frame) const override {
    TWML_RETURN_IF_ERROR(CheckEntryIds(frame, in[0], static_cast<int64_t>(ids_.size())));
    const int64_t n = frame.Splits(in[2]).num_entries();
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    const auto* const values = frame.Entries<float>(in[1]);
    float* const y = frame.memory->New<float>(n);
    const bool finite = GetScoringKernels().normalize(ids_.data(), ids, values, n, y);
    if (!finite && !zero_) {
      int64_t k = 0;
      while (std::isfinite(values[k])) ++k;
      return Invalid("values[", frame.views[in[0]].stride + k, "] = ", values[k], " is not finite");
    }
    frame.SetEntries(out[0], y, in[0]);
    return Status();
  }

 private:
  std::vector<IdNormalization> ids_;  // both numbers of an id are in one cache line
  bool zero_ = false;
};

// clip((value - mean) / max(sd, epsilon), -clip, clip) + bias[id]; see online_standardize.h. A NaN
// and the values of an id that training has not seen give the bias.
class StandardizeStep : public EntryStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    reader.BatchInput(0);
    reader.EntriesOutput(0, Form::kValues, 0);
    auto step = std::make_unique<StandardizeStep>();
    const ArrayFile moments = reader.Array("moments", ItemType::kFloat64, 2);
    ArrayFile bias;
    const bool has_bias = reader.OptionalArray("bias", ItemType::kFloat32, 1, &bias);
    const double epsilon = reader.Number("epsilon");
    step->clip_ = reader.Number("clip");
    step->zero_ = reader.Choice("nonfinite", {"error", "zero"}) == 1;
    if (!reader.ok()) return nullptr;
    const int64_t n = moments.shape()[0];
    if (moments.shape()[1] != 3 || (has_bias && bias.size() != n)) {
      reader.Fail("must have three moments and a bias for each id");
    } else if (!(epsilon > 0) || !(step->clip_ > 0)) {
      reader.Fail("must have a positive epsilon and clip");
    }
    if (!reader.ok()) return nullptr;
    step->ids_.resize(n);
    for (int64_t i = 0; i < n; ++i) {
      Normalization& id = step->ids_[i];
      const double* const m = moments.items<double>().data() + 3 * i;
      if (m[0] > 0) id.scale = 1 / std::max(std::sqrt(std::max(0.0, m[2] / m[0])), epsilon);
      if (m[0] > 0) id.mean = m[1];
      if (has_bias) id.bias = bias.items<float>()[i];
    }
    return step;
  }

  Status Run(const Frame& frame) const override {
    TWML_RETURN_IF_ERROR(CheckEntryIds(frame, in[0], static_cast<int64_t>(ids_.size())));
    const int64_t n = frame.Splits(in[2]).num_entries();
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    const auto* const values = frame.Entries<float>(in[1]);
    float* const y = frame.memory->New<float>(n);
    for (int64_t k = 0; k < n; ++k) {
      const Normalization& id = ids_[ids[k]];
      const float value = values == nullptr ? 1 : values[k];
      if (std::isinf(value) && !zero_) {
        return Invalid("values[", frame.views[in[0]].stride + k, "] = ", value, " is not finite");
      }
      const double z = std::isfinite(value) ? (value - id.mean) * id.scale : 0;
      y[k] = static_cast<float>(std::clamp(z, -clip_, clip_)) + id.bias;
    }
    frame.SetEntries(out[0], y, in[0]);
    return Status();
  }

 private:
  struct Normalization {
    double mean = 0, scale = 0;
    float bias = 0;
  };

  std::vector<Normalization> ids_;
  double clip_ = 0;
  bool zero_ = false;
};

class HashIdsStep : public EntryStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.IdsInput(0);
    reader.EntriesOutput(0, Form::kIds, 0);
    auto step = std::make_unique<HashIdsStep>();
    const int64_t bits = reader.Integer("bits");
    if (const Status valid = CheckHashBits(bits, "bits"); reader.ok() && !valid.ok()) {
      reader.Fail(": " + valid.message());
    }
    step->bits_ = static_cast<int>(bits);
    return step;
  }

  Status Run(const Frame& frame) const override {
    const int64_t n = frame.SplitsOf(in[0]).num_entries();
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    int64_t* const hashes = frame.memory->New<int64_t>(n);
    for (int64_t k = 0; k < n; ++k) hashes[k] = ReduceToBits(HashPair(0, ids[k]), bits_);
    frame.SetEntries(out[0], hashes, in[0]);
    frame.limits[out[0]] = int64_t{1} << bits_;
    return Status();
  }

 private:
  int bits_ = 1;
};

// The remainders of ids, which are not negative, for a table that takes ids outside of it.
class WrapIdsStep : public EntryStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.IdsInput(0);
    reader.EntriesOutput(0, Form::kIds, 0);
    auto step = std::make_unique<WrapIdsStep>();
    step->num_rows_ = reader.Integer("num_rows");
    if (reader.ok() && step->num_rows_ < 1) reader.Fail("must have a num_rows of at least 1");
    return step;
  }

  Status Run(const Frame& frame) const override {
    const int64_t n = frame.SplitsOf(in[0]).num_entries();
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    int64_t* const rows = frame.memory->New<int64_t>(n);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t remainder = ids[k] % num_rows_;
      rows[k] = remainder < 0 ? remainder + num_rows_ : remainder;
    }
    frame.SetEntries(out[0], rows, in[0]);
    frame.limits[out[0]] = num_rows_;
    return Status();
  }

 private:
  int64_t num_rows_ = 1;
};

// The rows that a DynamicLookup has given to ids; 0 for ids without one.
class DynamicLookupStep : public EntryStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(1);
    reader.IdsInput(0);
    reader.EntriesOutput(0, Form::kIds, 0);
    auto step = std::make_unique<DynamicLookupStep>();
    step->keys_ = reader.Array("keys", ItemType::kInt64, 1);
    step->index_ = reader.Array("index", ItemType::kInt32, 1);
    step->seed_ = reader.Integer("seed");
    if (!reader.ok()) return nullptr;
    const Status valid = CheckDynamicIndex(step->keys_.size(), step->index_.size());
    if (!valid.ok()) reader.Fail(": " + valid.message());
    return step;
  }

  Status Run(const Frame& frame) const override {
    const int64_t n = frame.SplitsOf(in[0]).num_entries();
    const auto* const ids = frame.Entries<int64_t>(in[0]);
    int64_t* const rows = frame.memory->New<int64_t>(n);
    FindDynamicRowsSerially({ids, n}, keys_.items<int64_t>(), index_.items<int32_t>(), seed_, rows);
    frame.SetEntries(out[0], rows, in[0]);
    frame.limits[out[0]] = keys_.size();
    return Status();
  }

  int64_t CostOfRow(const Shapes&) const override { return 200; }

 private:
  ArrayFile keys_, index_;
  int64_t seed_ = 0;
};

template <BucketIds kind>
class DiscretizeStep : public EntryStep {
 public:
  static std::unique_ptr<Step> Make(StepReader& reader) {
    reader.RequireInputs(3);
    reader.RequireOutputs(3);
    reader.BatchInput(0);
    reader.BatchOutput(0);
    auto step = std::make_unique<DiscretizeStep>();
    const ArrayFile features = reader.Array("feature_ids", ItemType::kInt64, 1);
    const ArrayFile boundaries = reader.Array("boundaries", ItemType::kFloat32, 1);
    const ArrayFile splits = reader.Array("boundary_splits", ItemType::kInt64, 1);
    DiscretizeOptions& options = step->options_;
    options.side = static_cast<Side>(reader.Choice("side", {"left", "right"}));
    options.missing = static_cast<MissingPolicy>(reader.Choice("missing", {"bucket", "drop"}));
    options.unknown =
        static_cast<UnknownPolicy>(reader.Choice("unknown", {"pass", "drop", "error"}));
    options.keep_inputs = reader.Bool("keep_inputs");
    const bool hashed = kind == BucketIds::kHashed;
    const char* const name = hashed ? "output_bits" : "pass_through_bits";
    const int64_t bits = reader.Integer(name);
    step->bits_ = static_cast<int>(bits);
    if (!reader.ok()) return nullptr;
    Status valid = CheckHashBits(bits, name);
    if (valid.ok()) {
      valid = Buckets::Make(features.items<int64_t>(), boundaries.items<float>(),
                            splits.items<int64_t>(), Serial, &step->buckets_);
    }
    if (!valid.ok()) reader.Fail(": " + valid.message());
    return step;
  }

  Status Run(const Frame& frame) const override {
    const RowSplits splits = frame.Splits(in[2]);
    const int64_t n = splits.num_entries();
    const auto* const values = frame.Entries<float>(in[1]);
    Csr<int64_t> batch;
    batch.ids = {frame.Entries<int64_t>(in[0]), n};
    if (values != nullptr) batch.values = {values, n};
    batch.binary = values == nullptr;
    batch.row_splits = {splits.data, frame.rows + 1};
    EntryMemory& memory = *frame.memory;
    const int64_t outputs = options_.keep_inputs ? 2 * n : n;
    DiscretizeMemory work;
    work.out = {memory.New<int64_t>(outputs), memory.New<float>(outputs)};
    if (ChangesNumberOfEntries(options_)) {
      work.all = {memory.New<int64_t>(n), memory.New<float>(n)};
    }
    if (options_.keep_inputs) work.kept = memory.New<int64_t>(n);
    int64_t* const out_splits = memory.New<int64_t>(frame.rows + 1);
    TWML_RETURN_IF_ERROR(
        DiscretizeSerially(batch, buckets_, options_, kind, bits_, work, out_splits));
    frame.SetEntries(out[0], work.out.ids, in[0]);
    if (out[1] != kNoRegister) frame.SetEntries(out[1], work.out.values, in[0]);
    frame.views[out[2]] = {out_splits, 1};
    return Status();
  }

 private:
  Buckets buckets_;
  DiscretizeOptions options_;
  int bits_ = 1;
};

}  // namespace

MakeStep FindSparseStep(const std::string& op) {
  constexpr std::pair<const char*, MakeStep> kSteps[] = {
      {"dynamic_lookup", DynamicLookupStep::Make},
      {"hash_ids", HashIdsStep::Make},
      {"hashing_discretize", DiscretizeStep<BucketIds::kHashed>::Make},
      {"max_norm", MaxNormStep::Make},
      {"online_standardize", StandardizeStep::Make},
      {"percentile_discretize", DiscretizeStep<BucketIds::kContiguous>::Make},
      {"sparse_linear", SparseLinearStep::Make},
      {"wrap_ids", WrapIdsStep::Make}};
  for (const auto& [name, make] : kSteps) {
    if (op == name) return make;
  }
  return nullptr;
}

}  // namespace twml::scorer
