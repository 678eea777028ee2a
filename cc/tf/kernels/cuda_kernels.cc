// The kernels for CUDA GPUs of the ops that use tables. They are registered when twml_use_cuda has
// loaded the library of CUDA kernels; on machines without one they do not exist.
#include <limits>
#include <string>
#include <vector>

#include "cc/tf/kernels/cuda_arguments.h"
#include "cc/tf/kernels/cuda_kernel.h"
#include "cc/tf/kernels/grouped_tables.h"
#include "cc/tf/kernels/table.h"
#include "cc/tf/kernels/tensor_util.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace twml {
namespace {

class CudaSparseLinearOp : public CudaKernel {
 public:
  explicit CudaSparseLinearOp(OpKernelConstruction* ctx) : CudaKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

 private:
  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    TwmlCudaBatch batch;
    TF_RETURN_IF_ERROR(BatchOf(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch));
    LockedTables tables;
    TF_RETURN_IF_ERROR(LockForReading(ctx, 3, 1, TableDType::kFloat32OrBfloat16, &tables));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(tables.tensor(), 2, "weights")));
    scope->table = Describe(HandleFromInput(ctx, 3), tables.tensor());
    const TwmlCudaTable table = TableOf(tables.tensor());
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "output", {batch.num_rows, table.dim}, &out));
    float* data = out->flat<float>().data();
    return ToStatus(cuda.sparse_linear(&scope->call, 1, &batch, &table, &data), *scope);
  }

  bool binary_;
};

// The products of several tables in one launch for each type of ids and weights.
class CudaGroupedSparseLinearOp : public CudaKernel {
 public:
  explicit CudaGroupedSparseLinearOp(OpKernelConstruction* ctx) : CudaKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetGroupedAttributes(ctx, &num_tables_, &binary_));
  }

 private:
  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    const int n = num_tables_;
    std::vector<TwmlCudaBatch> batches(n);
    std::vector<TwmlCudaTable> tables(n);
    std::vector<float*> outs(n);
    LockedTables locked;
    TF_RETURN_IF_ERROR(LockForReading(ctx, 3 * n, n, TableDType::kFloat32OrBfloat16, &locked));
    for (int i = 0; i < n; ++i) {
      scope->table = Describe(HandleFromInput(ctx, 3 * n + i), locked.tensor(i));
      TF_RETURN_IF_ERROR(InTable(i, BatchOf(ctx->input(i), ctx->input(n + i), ctx->input(2 * n + i),
                                            binary_[i], &batches[i])));
      TF_RETURN_IF_ERROR(InTable(i, ToAbslStatus(CheckRank(locked.tensor(i), 2, "weights"))));
      tables[i] = TableOf(locked.tensor(i));
      Tensor* out;
      TF_RETURN_IF_ERROR(
          AllocateOutput(ctx, i, "output", {batches[i].num_rows, tables[i].dim}, &out));
      outs[i] = out->flat<float>().data();
    }
    return ToStatus(cuda.sparse_linear(&scope->call, n, batches.data(), tables.data(), outs.data()),
                    *scope);
  }

  static absl::Status InTable(int i, const absl::Status& s) {
    if (s.ok()) return s;
    return absl::InvalidArgumentError(absl::StrCat("table ", i, ": ", s.message()));
  }

  int num_tables_;
  std::vector<bool> binary_;
};

class CudaValuesGradOp : public CudaKernel {
 public:
  using CudaKernel::CudaKernel;

 private:
  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    const Tensor no_values(tensorflow::DT_FLOAT, TensorShape({0}));
    TwmlCudaBatch batch;
    TF_RETURN_IF_ERROR(BatchOf(ctx->input(0), no_values, ctx->input(1), true, &batch));
    LockedTables tables;
    TF_RETURN_IF_ERROR(LockForReading(ctx, 2, 1, TableDType::kFloat32OrBfloat16, &tables));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(tables.tensor(), 2, "weights")));
    scope->table = Describe(HandleFromInput(ctx, 2), tables.tensor());
    const TwmlCudaTable table = TableOf(tables.tensor());
    const Tensor& grad = ctx->input(3);
    TF_RETURN_IF_ERROR(CheckShape(grad, "grad", batch.num_rows, table.dim));
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "values_grad", {batch.num_entries}, &out));
    return ToStatus(cuda.values_grad(&scope->call, &batch, &table, grad.flat<float>().data(),
                                     out->flat<float>().data()),
                    *scope);
  }
};

// The groups of a batch, in memory of the device. The variant itself is on the host.
struct CudaGroups {
  Tensor ids, splits, num_groups, rows, values;
  int64_t num_rows = 0, input_dim = 0;
  bool binary = false;
  std::string device;

  std::string TypeName() const { return "twml::CudaGroups"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

  absl::Status Allocate(OpKernelContext* ctx, const TwmlCudaBatch& batch) {
    const int64_t n = batch.num_entries;
    const auto allocate = [&](tensorflow::DataType dtype, int64_t size, Tensor* t) {
      return ctx->allocate_temp(dtype, TensorShape({size}), t);
    };
    num_rows = batch.num_rows;
    binary = batch.values == nullptr;
    device = ctx->device()->name();
    TF_RETURN_IF_ERROR(allocate(tensorflow::DT_INT64, n, &ids));
    TF_RETURN_IF_ERROR(allocate(tensorflow::DT_INT64, n + 1, &splits));
    TF_RETURN_IF_ERROR(allocate(tensorflow::DT_INT64, 1, &num_groups));
    TF_RETURN_IF_ERROR(allocate(tensorflow::DT_INT32, n, &rows));
    return allocate(tensorflow::DT_FLOAT, batch.values == nullptr ? 0 : n, &values);
  }

  TwmlCudaGroups Get() const {
    const auto data = [](const Tensor& t) { return t.data(); };
    return {static_cast<int64_t*>(data(ids)),
            static_cast<int64_t*>(data(splits)),
            static_cast<int64_t*>(data(num_groups)),
            static_cast<int32_t*>(data(rows)),
            binary || values.NumElements() == 0 ? nullptr : static_cast<float*>(data(values)),
            ids.NumElements(),
            num_rows};
  }
};

// The groups in a tensor, which must be made of a batch for a table with input_dim rows, made on
// the device that runs this op. Groups of the host have another type.
absl::Status ReadGroups(OpKernelContext* ctx, const Tensor& tensor, int64_t input_dim,
                        const CudaGroups** groups) {
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(tensor, 0, "groups")));
  *groups = tensor.scalar<tensorflow::Variant>()().get<CudaGroups>();
  if (*groups == nullptr || (*groups)->device != ctx->device()->name()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "groups must be an output of GroupBatch on ", ctx->device()->name(), ", got one of ",
        *groups == nullptr ? "another kind of device" : (*groups)->device));
  }
  if ((*groups)->input_dim != input_dim) {
    return absl::InvalidArgumentError(absl::StrCat("groups must have ids in [0, ", input_dim,
                                                   "), got [0, ", (*groups)->input_dim, ")"));
  }
  return absl::OkStatus();
}

// Reads the number of rows of a table, an input in host memory.
absl::Status InputDimOf(const Tensor& input, int64_t* input_dim) {
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(input, 0, "input_dim")));
  *input_dim = input.scalar<int64_t>()();
  if (*input_dim >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("input_dim must not be negative, got ", *input_dim));
}

// The base of ops with one output row for each group of entries with the same id.
template <class Id>
class CudaGroupSumsOp : public CudaKernel {
 public:
  using CudaKernel::CudaKernel;

 protected:
  // Computes the outputs from the groups and their gradient [groups.num_rows, dim]. The number of
  // groups determines the shape of the outputs, so this waits for the device.
  absl::Status SumGroups(const TwmlCudaGroups& groups, const Tensor& grad, Scope* scope) const {
    OpKernelContext* const ctx = scope->ctx;
    int64_t number = 0;
    TF_RETURN_IF_ERROR(ReadItem(groups.num_groups, *scope, &number));
    TensorShape shape = grad.shape();
    shape.set_dim(0, number);
    Tensor *ids, *rows;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "unique_ids", {number}, &ids));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "rows", shape.dim_sizes(), &rows));
    TF_RETURN_IF_ERROR(ToStatus(
        cuda.copy_ids(StreamOf(ctx), groups.ids, number, sizeof(Id) == 8, ids->data()), *scope));
    return ToStatus(cuda.sum_groups(&scope->call, &groups, grad.flat<float>().data(),
                                    RowSize(grad.shape()), rows->flat<float>().data()),
                    *scope);
  }
};

template <class Id>
class CudaWeightsGradOp : public CudaGroupSumsOp<Id> {
 public:
  explicit CudaWeightsGradOp(OpKernelConstruction* ctx) : CudaGroupSumsOp<Id>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

 private:
  using Scope = CudaKernel::Scope;

  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    TwmlCudaBatch batch;
    TF_RETURN_IF_ERROR(BatchOf(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch));
    const Tensor& grad = ctx->input(3);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(grad, 2, "grad")));
    int64_t input_dim;
    TF_RETURN_IF_ERROR(InputDimOf(ctx->input(4), &input_dim));
    const int64_t dim = grad.dim_size(1);
    TF_RETURN_IF_ERROR(CheckShape(grad, "grad", batch.num_rows, dim));
    scope->table = absl::StrCat("a table of shape [", input_dim, ", ", dim, "]");
    OpInputList shared;
    TF_RETURN_IF_ERROR(ctx->input_list("groups", &shared));
    CudaGroups memory;
    TwmlCudaGroups groups;
    if (shared.size() == 0) {
      TF_RETURN_IF_ERROR(memory.Allocate(ctx, batch));
      groups = memory.Get();
      TF_RETURN_IF_ERROR(
          this->ToStatus(cuda.group_batch(&scope->call, &batch, input_dim, &groups), *scope));
    } else {
      const CudaGroups* found;
      TF_RETURN_IF_ERROR(ReadGroups(ctx, shared[0], input_dim, &found));
      if (shared.size() != 1 || found->num_rows != batch.num_rows || found->binary != binary_ ||
          found->ids.NumElements() != batch.num_entries) {
        return absl::InvalidArgumentError(
            "groups must be none or one output of GroupBatch for the same batch");
      }
      groups = found->Get();
    }
    return this->SumGroups(groups, grad, scope);
  }

  bool binary_;
};

// Entry k is row k, and ids have no upper bound.
template <class Id>
class CudaSumDuplicatesOp : public CudaGroupSumsOp<Id> {
 public:
  using CudaGroupSumsOp<Id>::CudaGroupSumsOp;

 private:
  using Scope = CudaKernel::Scope;

  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    const Tensor &ids = ctx->input(0), &rows = ctx->input(1);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(rows, "rows")));
    const int64_t n = ids.NumElements();
    if (rows.dim_size(0) != n) {
      return absl::InvalidArgumentError(absl::StrCat("rows must have one row for each of the ", n,
                                                     " ids, got ", rows.shape().DebugString()));
    }
    if (ctx->num_inputs() != 2) return GroupsOfIdsError();
    scope->table = absl::StrCat("rows of shape ", rows.shape().DebugString());
    const TwmlCudaBatch batch = {ids.data(), sizeof(Id) == 8, nullptr, nullptr, n, n};
    CudaGroups memory;
    TF_RETURN_IF_ERROR(memory.Allocate(ctx, batch));
    const TwmlCudaGroups groups = memory.Get();
    const int64_t unbounded = std::numeric_limits<int64_t>::max();
    TF_RETURN_IF_ERROR(
        this->ToStatus(cuda.group_batch(&scope->call, &batch, unbounded, &groups), *scope));
    return this->SumGroups(groups, rows, scope);
  }
};

class CudaGroupBatchOp : public CudaKernel {
 public:
  explicit CudaGroupBatchOp(OpKernelConstruction* ctx) : CudaKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("binary", &binary_));
  }

 private:
  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    TwmlCudaBatch batch;
    TF_RETURN_IF_ERROR(BatchOf(ctx->input(0), ctx->input(1), ctx->input(2), binary_, &batch));
    if (ctx->num_inputs() != 4) return GroupsOfIdsError();
    CudaGroups memory;
    TF_RETURN_IF_ERROR(InputDimOf(ctx->input(3), &memory.input_dim));
    scope->table = absl::StrCat("a table of ", memory.input_dim, " rows");
    TF_RETURN_IF_ERROR(memory.Allocate(ctx, batch));
    const TwmlCudaGroups groups = memory.Get();
    TF_RETURN_IF_ERROR(
        ToStatus(cuda.group_batch(&scope->call, &batch, memory.input_dim, &groups), *scope));
    Tensor out(tensorflow::DT_VARIANT, TensorShape({}));
    out.scalar<tensorflow::Variant>()() = std::move(memory);
    ctx->set_output(0, out);
    return absl::OkStatus();
  }

  bool binary_;
};

// The base of both update ops. Input 0 is var, inputs 1 to num_slots are its slots, and the last
// inputs are hyper and seed.
class CudaUpdateOp : public CudaKernel {
 public:
  explicit CudaUpdateOp(OpKernelConstruction* ctx) : CudaKernel(ctx) {
    std::string rule;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rule", &rule));
    rule_ = FindUpdateRule(rule);
    OP_REQUIRES(ctx, rule_ >= 0,
                absl::InvalidArgumentError(absl::StrCat("rule '", rule, "' is not known")));
    int num_slots, num_hyper;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_slots", &num_slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_hyper", &num_hyper));
    const UpdateRuleInfo& info = kUpdateRules[rule_];
    OP_REQUIRES(ctx, num_slots == info.num_slots && num_hyper == info.num_hyper,
                absl::InvalidArgumentError(absl::StrCat("rule '", rule, "' takes ", info.num_slots,
                                                        " slots and ", info.num_hyper, " hyper")));
    num_slots_ = num_slots;
  }

 protected:
  const Tensor& Input(OpKernelContext* ctx, int i) const { return ctx->input(1 + num_slots_ + i); }
  // Makes the groups of the ids to update and finds their gradients [groups' rows, dim].
  virtual absl::Status Gradient(OpKernelContext* ctx, Scope* scope, const TwmlCudaTable& table,
                                CudaGroups* groups, const float** grad) const = 0;

 private:
  absl::Status Queue(OpKernelContext* ctx, Scope* scope) override {
    TwmlCudaRule rule = {};
    rule.rule = rule_;
    OpInputList hyper;
    TF_RETURN_IF_ERROR(ctx->input_list("hyper", &hyper));
    for (int i = 0; i < hyper.size(); ++i) {
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(hyper[i], 0, "hyper")));
      rule.hyper[i] = hyper[i].scalar<float>()();
    }
    const Tensor* seed;
    TF_RETURN_IF_ERROR(ctx->input("seed", &seed));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(*seed, 0, "seed")));
    rule.seed = static_cast<uint64_t>(seed->scalar<int64_t>()());
    LockedTables tables;
    TF_RETURN_IF_ERROR(tables.Add(ctx, 0, 1 + num_slots_, Access::kUpdate));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError("var and slots must be different variables");
    }
    tables.Lock();
    const Tensor& var = tables.tensor(0);
    TF_RETURN_IF_ERROR(CheckTable(var, "var", TableDType::kFloat32OrBfloat16));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(var, "var")));
    for (int s = 0; s < num_slots_; ++s) {
      const Tensor& slot = tables.tensor(1 + s);
      TF_RETURN_IF_ERROR(CheckTable(slot, "slots"));
      const bool fits = kUpdateRules[rule_].rowwise_slots ? slot.NumElements() == var.dim_size(0)
                                                          : slot.shape() == var.shape();
      if (!fits) {
        return absl::InvalidArgumentError(absl::StrCat("slots[", s, "] must fit var ",
                                                       var.shape().DebugString(), ", got ",
                                                       slot.shape().DebugString()));
      }
    }
    scope->table = Describe(HandleFromInput(ctx, 0), var);
    CudaGroups memory;
    const float* grad = nullptr;
    TF_RETURN_IF_ERROR(Gradient(ctx, scope, TableOf(var), &memory, &grad));
    for (int i = 0; i <= num_slots_; ++i) {
      TF_RETURN_IF_ERROR(MakeWritable(tables.var(i), *scope));
    }
    for (int s = 0; s < num_slots_; ++s) {
      rule.slots[s] = static_cast<float*>(tables.tensor(1 + s).data());
    }
    const TwmlCudaTable table = TableOf(tables.tensor(0));
    const TwmlCudaGroups groups = memory.Get();
    return ToStatus(cuda.update_groups(&scope->call, 1, &groups, &grad, &table, &rule), *scope);
  }

  int rule_, num_slots_;
};

class CudaApplyRowsOp : public CudaUpdateOp {
 public:
  using CudaUpdateOp::CudaUpdateOp;

 private:
  absl::Status Gradient(OpKernelContext* ctx, Scope* scope, const TwmlCudaTable& table,
                        CudaGroups* memory, const float** grad) const override {
    const Tensor &ids = Input(ctx, 0), &rows = Input(ctx, 1);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ids, 1, "ids")));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(rows, "rows")));
    if (rows.dim_size(0) != ids.NumElements() || RowSize(rows.shape()) != table.dim) {
      return absl::InvalidArgumentError(absl::StrCat("rows must have one row of ", table.dim,
                                                     " items for each of the ", ids.NumElements(),
                                                     " ids, got ", rows.shape().DebugString()));
    }
    const int64_t n = ids.NumElements();
    const TwmlCudaBatch batch = {
        ids.data(), ids.dtype() == tensorflow::DT_INT64, nullptr, nullptr, n, n};
    TF_RETURN_IF_ERROR(memory->Allocate(ctx, batch));
    *grad = rows.flat<float>().data();
    const TwmlCudaGroups groups = memory->Get();
    return ToStatus(cuda.group_batch(&scope->call, &batch, table.rows, &groups), *scope);
  }
};

class CudaBackwardApplyOp : public CudaUpdateOp {
 public:
  using CudaUpdateOp::CudaUpdateOp;

 private:
  absl::Status Gradient(OpKernelContext* ctx, Scope*, const TwmlCudaTable& table,
                        CudaGroups* memory, const float** grad) const override {
    const CudaGroups* groups;
    TF_RETURN_IF_ERROR(ReadGroups(ctx, Input(ctx, 0), table.rows, &groups));
    TF_RETURN_IF_ERROR(CheckShape(Input(ctx, 1), "grad", groups->num_rows, table.dim));
    *memory = *groups;
    *grad = Input(ctx, 1).flat<float>().data();
    return absl::OkStatus();
  }
};

void RegisterTableKernels() {
  RegisterCuda<CudaSparseLinearOp>("Twml>ResourceSparseLinear", {"weights"});
  RegisterCuda<CudaGroupedSparseLinearOp>("Twml>GroupedSparseLinear", {"weights"});
  RegisterCuda<CudaValuesGradOp>("Twml>ResourceSparseLinearValuesGrad", {"weights"});
  RegisterCuda<CudaGroupBatchOp>("Twml>GroupBatch", {"input_dim", "groups", "grouped"});
  RegisterCudaForIds<CudaWeightsGradOp>("Twml>SparseLinearWeightsGrad", {"input_dim", "groups"});
  RegisterCudaForIds<CudaSumDuplicatesOp>("Twml>SumDuplicates", {"groups"});
  RegisterCuda<CudaApplyRowsOp>("Twml>ApplyRows", {"var", "slots", "hyper", "seed"});
  RegisterCuda<CudaBackwardApplyOp>("Twml>SparseLinearBackwardApply",
                                    {"var", "slots", "groups", "hyper", "seed"});
}

}  // namespace
}  // namespace twml

// Loads the library of CUDA kernels and registers kernels for GPUs, once per process. Returns null,
// or why that failed.
extern "C" __attribute__((visibility("default"))) const char* twml_use_cuda(const char* path,
                                                                            int strict) {
  static std::string error;
  static std::once_flag once;
  std::call_once(once, [&] {
    twml::strict = strict != 0;
    error = twml::cuda.Load(path);
    if (!error.empty()) return;
    twml::RegisterTableKernels();
    twml::RegisterFeatureKernels();
  });
  return error.empty() ? nullptr : error.c_str();
}
