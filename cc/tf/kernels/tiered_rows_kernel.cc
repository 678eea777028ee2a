#include <atomic>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <unordered_map>

#include "cc/tf/kernels/sparse_product_op.h"
#include "cc/tf/kernels/tiered_rows.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/types.h"

namespace twml {
namespace {

using tensorflow::core::RefCountPtr;
using tensorflow::core::WeakPtr;

constexpr int kMaxFiles = 10000;  // of tables of one name, in a folder of a server

// The rows of this process's variables, by the address of the variable.
class TieredTables {
 public:
  void Add(tensorflow::Var* var, TieredTable* table) {
    std::lock_guard<std::mutex> lock(mu_);
    tables_[var] = WeakPtr<TieredTable>(table);
    size_ = tables_.size();
  }
  void Remove(tensorflow::Var* var) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto at = tables_.find(var);
    // Another table may have been opened for a variable at the same address.
    if (at != tables_.end() && at->second.GetNewRef() == nullptr) tables_.erase(at);
    size_ = tables_.size();
  }
  RefCountPtr<TieredTable> Find(tensorflow::Var* var) {
    if (size_.load(std::memory_order_relaxed) == 0) return nullptr;
    RefCountPtr<TieredTable> found;
    {
      std::lock_guard<std::mutex> lock(mu_);
      const auto at = tables_.find(var);
      if (at != tables_.end()) found = at->second.GetNewRef();
    }
    // Rows that are kept may be of a variable that had the address before.
    if (found != nullptr && !found->IsOf(var)) found.reset();
    return found;
  }

  // Keeps the rows of a variable until they are closed. Rows whose variable does not exist any more
  // are closed.
  void Keep(tensorflow::Var* var, RefCountPtr<TieredTable> table) {
    std::vector<RefCountPtr<TieredTable>> closed;  // whose destructors take the lock
    std::lock_guard<std::mutex> lock(mu_);
    for (auto at = kept_.begin(); at != kept_.end();) {
      const bool exists = at->second->IsOf(at->first);
      if (!exists) closed.push_back(std::move(at->second));
      at = exists ? std::next(at) : kept_.erase(at);
    }
    std::swap(kept_[var], table);  // the rows before are closed after the lock is released
  }
  // Returns whether rows of the variable were kept.
  bool Close(tensorflow::Var* var) {
    RefCountPtr<TieredTable> closed;
    std::lock_guard<std::mutex> lock(mu_);
    const auto at = kept_.find(var);
    if (at == kept_.end()) return false;
    closed = std::move(at->second);
    kept_.erase(at);
    return true;
  }

 private:
  std::atomic<size_t> size_{0};
  std::mutex mu_;
  std::unordered_map<tensorflow::Var*, WeakPtr<TieredTable>> tables_;
  std::unordered_map<tensorflow::Var*, RefCountPtr<TieredTable>> kept_;
};

TieredTables& GetTieredTables() {
  static auto* const registry = new TieredTables;  // never destroyed: kernels may outlive this file
  return *registry;
}

// The resource of one handle, as which an input may be fed anything of its type.
template <class T>
absl::Status ResourceOf(OpKernelContext* ctx, int input, RefCountPtr<T>* resource) {
  if (ctx->input(input).NumElements() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("input ", input, " must be one handle, got ",
                                                   ctx->input(input).NumElements()));
  }
  return LookupResource(ctx, tensorflow::HandleFromInput(ctx, input), resource);
}

absl::Status TableOfVariable(OpKernelContext* ctx, int input, RefCountPtr<TieredTable>* table) {
  RefCountPtr<tensorflow::Var> var;
  TF_RETURN_IF_ERROR(ResourceOf(ctx, input, &var));
  *table = FindTieredTable(var.get());
  if (*table != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("the table has no rows in a file in this process");
}

// The rows of an output of OpenTieredRows, or of a variable that has rows in a file.
absl::Status TableOf(OpKernelContext* ctx, int input, RefCountPtr<TieredTable>* table) {
  const bool is_variable = ctx->input(input).NumElements() == 1 &&
                           tensorflow::HandleFromInput(ctx, input).hash_code() ==
                               tensorflow::TypeIndex::Make<tensorflow::Var>().hash_code();
  return is_variable ? TableOfVariable(ctx, input, table) : ResourceOf(ctx, input, table);
}

int64_t RowBytes(const Tensor& t) {
  return RowSize(t.shape()) * tensorflow::DataTypeSize(t.dtype());
}

// A row of a slot that has the same value everywhere.
RowPart ConstantPart(const Tensor& slot, float value) {
  const std::vector<float> row(RowSize(slot.shape()), value);
  return {RowBytes(slot),
          std::string(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float))};
}

bool SameVariables(const std::vector<TieredTable::Var>& a, const std::vector<TieredTable::Var>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.get() == y.get(); });
}

class OpenTieredRowsOp : public Kernel {
 public:
  explicit OpenTieredRowsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    std::string policy;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("path", &options_.path));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_rows", &options_.num_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("prefetch_rows", &options_.prefetch_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("policy", &policy));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("direct", &options_.direct));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("io_uring", &options_.use_io_uring));
    options_.policy = policy == "lfu" ? RowPolicy::kLfu : RowPolicy::kLru;
  }

 protected:
  const std::string& path() const { return options_.path; }
  // Opens the rows of input 0 in a file.
  absl::Status Open(OpKernelContext* ctx, const std::string& path,
                    RefCountPtr<TieredTable>* made) const {
    LockedTables tables;
    TF_RETURN_IF_ERROR(tables.Add(ctx, 0, 1, Access::kUpdate));
    tables.Lock();
    const Tensor& table = tables.tensor();
    TF_RETURN_IF_ERROR(CheckTable(table, "table", TableDType::kFloat32OrBfloat16));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(table, 2, "table")));
    const Tensor& initial = ctx->input(1);
    if (initial.NumElements() != table.dim_size(1) || initial.dtype() != table.dtype()) {
      return absl::InvalidArgumentError("initial must be a row of the table");
    }
    TieredRowsOptions options = options_;
    options.path = path;
    options.cache_rows = table.dim_size(0);
    if (RowCache::PlacesFor(options.cache_rows) != options.cache_rows) {
      return absl::InvalidArgumentError(absl::StrCat("the table must have a multiple of ",
                                                     RowCache::kWays, " rows, got ",
                                                     options.cache_rows));
    }
    const RowPart weights = {
        RowBytes(table), std::string(static_cast<const char*>(initial.data()), RowBytes(table))};
    std::unique_ptr<TieredRows> rows;
    TF_RETURN_IF_ERROR(ToTieredStatus(TieredRows::Create(options, {weights}, &rows)));
    made->reset(new TieredTable(tables.var(0), std::move(rows)));
    return absl::OkStatus();
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    RefCountPtr<TieredTable> made;
    TF_RETURN_IF_ERROR(Open(ctx, path(), &made));
    Tensor handle(tensorflow::DT_RESOURCE, TensorShape({}));
    handle.scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(made.release(), ctx->device()->name());
    ctx->set_output(0, handle);
    return absl::OkStatus();
  }

  TieredRowsOptions options_;
};

// The rows of a server outlive the process that opens them, so the server keeps them itself. It
// also makes the folder, and finds a file that no other table uses.
class OpenServerRowsOp : public OpenTieredRowsOp {
 public:
  using OpenTieredRowsOp::OpenTieredRowsOp;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    RefCountPtr<tensorflow::Var> var;
    TF_RETURN_IF_ERROR(ResourceOf(ctx, 0, &var));
    GetTieredTables().Close(var.get());
    const auto folder = std::filesystem::path(path()).parent_path();
    std::error_code error;
    if (!folder.empty()) std::filesystem::create_directories(folder, error);
    if (error) {
      return absl::UnknownError(
          absl::StrCat("the folder ", folder.string(), " cannot be created: ", error.message()));
    }
    RowFile::RemoveUnused(folder.string());  // of servers that were killed
    RefCountPtr<TieredTable> made;
    std::string file;
    for (int number = 0;; ++number) {
      file = absl::StrCat(path(), number == 0 ? "" : absl::StrCat("-", number), ".rows");
      const absl::Status status = Open(ctx, file, &made);
      if (status.ok()) break;
      const bool in_use = status.message().find(kRowFileInUse) != std::string::npos;
      if (!in_use || number == kMaxFiles) return status;
    }
    GetTieredTables().Keep(var.get(), std::move(made));
    Tensor* out;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &out));
    out->scalar<tensorflow::tstring>()() = file;
    return absl::OkStatus();
  }
};

class CloseServerRowsOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    RefCountPtr<tensorflow::Var> var;
    const bool exists = ResourceOf(ctx, 0, &var).ok();
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "closed", {}, &out));
    out->scalar<bool>()() = exists && GetTieredTables().Close(var.get());
    return absl::OkStatus();
  }
};

class AttachSlotsOp : public Kernel {
 public:
  explicit AttachSlotsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_slots", &num_slots_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    RefCountPtr<TieredTable> table;
    TF_RETURN_IF_ERROR(TableOf(ctx, 0, &table));
    std::vector<TieredTable::Var> known = table->Variables(), slots;
    if (known.empty()) return absl::FailedPreconditionError("the table does not exist any more");
    bool same = static_cast<int>(known.size()) == 1 + num_slots_;
    LockedTables tables;
    for (int i = 0; i < num_slots_; ++i) {
      TF_RETURN_IF_ERROR(
          ToAbslStatus(CheckRank(ctx->input(1 + num_slots_ + i), 0, "initial_values")));
      TieredTable::Var slot;
      TF_RETURN_IF_ERROR(ResourceOf(ctx, 1 + i, &slot));
      same = same && slot.get() == known[1 + i].get();
      slots.push_back(std::move(slot));
    }
    if (same) return absl::OkStatus();
    tables.Add(std::move(known[0]), Access::kUpdate);
    TF_RETURN_IF_ERROR(tables.Add(ctx, 1, num_slots_, Access::kUpdate));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError("the table and its slots must be different variables");
    }
    tables.Lock();
    const Tensor& weights = tables.tensor(0);
    std::vector<RowPart> parts = {table->rows()->parts()[0]};
    for (int i = 0; i < num_slots_; ++i) {
      const Tensor& slot = tables.tensor(1 + i);
      TF_RETURN_IF_ERROR(CheckTable(slot, "slots"));
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(slot, "slots")));
      if (slot.dim_size(0) != weights.dim_size(0)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "slots[", i, "] must have ", weights.dim_size(0), " rows, got ", slot.dim_size(0)));
      }
      parts.push_back(ConstantPart(slot, ctx->input(1 + num_slots_ + i).scalar<float>()()));
    }
    TF_RETURN_IF_ERROR(ToTieredStatus(table->rows()->SetParts(std::move(parts))));
    for (int i = 0; i < num_slots_; ++i) {
      float* data;
      TF_RETURN_IF_ERROR(tables.MutableData(ctx, 1 + i, &data));
      std::fill_n(data, tables.tensor(1 + i).NumElements(),
                  ctx->input(1 + num_slots_ + i).scalar<float>()());
    }
    table->SetSlots(std::move(slots));
    return absl::OkStatus();
  }

  int num_slots_;
};

template <class Id>
class PrefetchRowsOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    RefCountPtr<TieredTable> table;
    TF_RETURN_IF_ERROR(TableOf(ctx, 0, &table));
    const Tensor& ids = ctx->input(1);
    TF_RETURN_IF_ERROR(ToTieredStatus(table->rows()->Prefetch(SpanOf<Id>(ids))));
    Tensor* count;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "count", {}, &count));
    count->scalar<int64_t>()() = ids.NumElements();
    return absl::OkStatus();
  }
};

// Reads or writes neighboring rows of one part.
class RowsOfPartOp : public Kernel {
 public:
  explicit RowsOfPartOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("part", &part_));
  }

 protected:
  absl::Status Begin(OpKernelContext* ctx, LockedTieredTable* table, int64_t* begin) const {
    RefCountPtr<TieredTable> found;
    TF_RETURN_IF_ERROR(TableOf(ctx, 0, &found));
    TF_RETURN_IF_ERROR(table->Lock(ctx, std::move(found)));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(1), 0, "begin")));
    *begin = ctx->input(1).scalar<int64_t>()();
    if (part_ < table->num_parts()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("part must be less than ", table->num_parts(), ", got ", part_));
  }
  absl::Status CheckRange(const LockedTieredTable& table, int64_t begin, int64_t count) const {
    const int64_t num_rows = table->num_rows();
    if (begin >= 0 && count >= 0 && begin <= num_rows && count <= num_rows - begin) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("rows must be in [0, ", num_rows, "), got ", count, " from ", begin));
  }

  int part_;
};

class ReadTieredRowsOp : public RowsOfPartOp {
 public:
  using RowsOfPartOp::RowsOfPartOp;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedTieredTable table;
    int64_t begin;
    TF_RETURN_IF_ERROR(Begin(ctx, &table, &begin));
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(ctx->input(2), 0, "count")));
    const int64_t count = ctx->input(2).scalar<int64_t>()();
    TF_RETURN_IF_ERROR(CheckRange(table, begin, count));
    const Tensor& part = table.part(part_);
    if (part.dtype() != ctx->expected_output_dtype(0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype must be ", tensorflow::DataTypeString(part.dtype()), ", that of the part"));
    }
    auto dims = part.shape().dim_sizes();
    dims[0] = count;
    Tensor* values;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "values", dims, &values));
    return ToTieredStatus(
        table->ReadPart(part_, begin, count, table.cache(), static_cast<char*>(values->data())));
  }
};

class WriteTieredRowsOp : public RowsOfPartOp {
 public:
  using RowsOfPartOp::RowsOfPartOp;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedTieredTable table;
    int64_t begin;
    TF_RETURN_IF_ERROR(Begin(ctx, &table, &begin));
    const Tensor& values = ctx->input(2);
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(values, "values")));
    const Tensor& part = table.part(part_);
    if (values.dtype() != part.dtype() || RowBytes(values) != RowBytes(part)) {
      return absl::InvalidArgumentError(absl::StrCat("values must be rows of ",
                                                     part.shape().DebugString(), ", got ",
                                                     values.shape().DebugString()));
    }
    TF_RETURN_IF_ERROR(CheckRange(table, begin, values.dim_size(0)));
    return ToTieredStatus(table->WritePart(part_, begin, values.dim_size(0),
                                           static_cast<const char*>(values.data()), table.cache()));
  }
};

class TieredStatisticsOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    RefCountPtr<TieredTable> table;
    TF_RETURN_IF_ERROR(TableOf(ctx, 0, &table));
    TieredRows::Statistics s;
    TF_RETURN_IF_ERROR(ToTieredStatus(table->rows()->GetStatistics(&s)));
    const int64_t counts[] = {s.lookups,
                              s.rows,
                              s.misses,
                              s.prefetched,
                              s.prefetches,
                              s.written_back,
                              s.store.rows_read,
                              s.store.bytes_read,
                              s.store.bytes_written,
                              s.direct ? 1 : 0,
                              s.uses_io_uring ? 1 : 0};
    Tensor* out;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "counts", {std::size(counts)}, &out));
    std::copy(std::begin(counts), std::end(counts), out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

// A table whose rows are in a file.
class TableInFile {
 public:
  explicit TableInFile(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("input_dim", &input_dim_));
  }

  // The ids of the batch become rows of the cache. They stay there until the variables are
  // unlocked.
  template <class Id, class Body>
  absl::Status With(OpKernelContext* ctx, int input, Csr<Id> batch, RowUse use, Body body) {
    TF_RETURN_IF_ERROR(ToAbslStatus(CheckCsrShape(batch)));
    RefCountPtr<TieredTable> found;
    TF_RETURN_IF_ERROR(TableOfVariable(ctx, input, &found));
    LockedTieredTable table;
    TF_RETURN_IF_ERROR(table.Lock(ctx, std::move(found)));
    if (table->num_rows() != input_dim_) {
      return absl::InvalidArgumentError(
          absl::StrCat("input_dim must be ", table->num_rows(), ", got ", input_dim_));
    }
    Scratch<Id> rows(batch.ids.size());
    TF_RETURN_IF_ERROR(ToTieredStatus(table->Map(batch.ids, table.cache(), use == RowUse::kCounts,
                                                 /*changes=*/false, IntraOp(ctx), rows.data())));
    batch.ids = {rows.data(), batch.ids.size()};
    return VisitWeightType(table.weights(), [&](auto weight) {
      return body(batch, MatrixOf<decltype(weight)>(table.weights()));
    });
  }

 private:
  int64_t input_dim_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("Twml>OpenTieredRows").Device(DEVICE_CPU), OpenTieredRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>OpenServerRows").Device(DEVICE_CPU), OpenServerRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>CloseServerRows").Device(DEVICE_CPU), CloseServerRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>AttachSlots").Device(DEVICE_CPU), AttachSlotsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>ReadTieredRows").Device(DEVICE_CPU), ReadTieredRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>WriteTieredRows").Device(DEVICE_CPU), WriteTieredRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>TieredStatistics").Device(DEVICE_CPU), TieredStatisticsOp);
#define TWML_REGISTER(Id)                                                                       \
  REGISTER_KERNEL_BUILDER(Name("Twml>PrefetchRows").Device(DEVICE_CPU).TypeConstraint<Id>("T"), \
                          PrefetchRowsOp<Id>);                                                  \
  REGISTER_KERNEL_BUILDER(                                                                      \
      Name("Twml>TieredSparseLinear").Device(DEVICE_CPU).TypeConstraint<Id>("T"),               \
      SparseLinearOp<Id, TableInFile>);                                                         \
  REGISTER_KERNEL_BUILDER(                                                                      \
      Name("Twml>TieredSparseLinearValuesGrad").Device(DEVICE_CPU).TypeConstraint<Id>("T"),     \
      SparseLinearValuesGradOp<Id, TableInFile>);
TWML_REGISTER(int32_t)
TWML_REGISTER(int64_t)
#undef TWML_REGISTER

}  // namespace

TieredTable::TieredTable(tensorflow::Var* table, std::unique_ptr<TieredRows> rows)
    : rows_(std::move(rows)), table_(table), address_(table) {
  GetTieredTables().Add(table, this);
}

bool TieredTable::IsOf(tensorflow::Var* var) const { return table_.GetNewRef().get() == var; }

TieredTable::~TieredTable() { GetTieredTables().Remove(address_); }

std::vector<TieredTable::Var> TieredTable::Variables() const {
  std::vector<Var> variables;
  variables.push_back(table_.GetNewRef());
  if (variables[0] == nullptr) return {};
  std::lock_guard<std::mutex> lock(mu_);
  for (const Var& slot : slots_) variables.push_back(slot.GetNewRef());
  return variables;
}

void TieredTable::SetSlots(std::vector<Var> slots) {
  std::lock_guard<std::mutex> lock(mu_);
  slots_ = std::move(slots);
}

RefCountPtr<TieredTable> FindTieredTable(tensorflow::Var* var) {
  return GetTieredTables().Find(var);
}

absl::Status LockedTieredTable::Lock(OpKernelContext* ctx, RefCountPtr<TieredTable> table) {
  table_ = std::move(table);
  for (;;) {
    std::vector<TieredTable::Var> variables = table_->Variables();
    if (variables.empty()) {
      return absl::FailedPreconditionError("the table does not exist any more");
    }
    own_ = std::make_unique<LockedTables>();
    for (const TieredTable::Var& each : variables) own_->Add(each.GetNewRef(), Access::kUpdate);
    own_->Lock();
    // Other slots may have been attached before the table was locked.
    if (SameVariables(variables, table_->Variables())) break;
  }
  tables_ = own_.get();
  return TakeParts(ctx);
}

absl::Status LockedTieredTable::Use(OpKernelContext* ctx, RefCountPtr<TieredTable> table,
                                    LockedTables* tables, int count) {
  table_ = std::move(table);
  tables_ = tables;
  const std::vector<TieredTable::Var> variables = table_->Variables();
  bool same = static_cast<int>(variables.size()) == count;
  for (int i = 0; same && i < count; ++i) same = variables[i].get() == tables->var(i);
  if (!same) {
    return absl::FailedPreconditionError(
        "the slots must be those that are kept in the file beside the table: it can be updated by "
        "the optimizers of twml_ops only");
  }
  return TakeParts(ctx);
}

absl::Status LockedTieredTable::TakeParts(OpKernelContext* ctx) {
  const std::vector<RowPart>& parts = table_->rows()->parts();
  const int count = static_cast<int>(parts.size());
  if (tables_->size() < count) {
    return absl::FailedPreconditionError("the slots of the table have changed");
  }
  for (int i = 0; i < count; ++i) {
    const Tensor& part = tables_->tensor(i);
    if (!part.IsInitialized() || part.dims() < 1 ||
        part.dim_size(0) != table_->rows()->cache_rows() || RowBytes(part) != parts[i].bytes) {
      return absl::FailedPreconditionError(
          "the table and its slots must have the shapes and types with which their file was "
          "opened");
    }
    char* data;
    TF_RETURN_IF_ERROR(tables_->MutableData(ctx, i, &data));
    parts_.push_back(data);
  }
  return absl::OkStatus();
}

}  // namespace twml
