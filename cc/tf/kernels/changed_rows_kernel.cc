#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "cc/tf/kernels/changed_rows.h"
#include "cc/tf/kernels/tiered_rows.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/refcount.h"

namespace twml {
namespace {

// Records by the address of their variable. One whose variable no longer exists is dropped when its
// address is used again, or when another record is added.
class TableChangesRegistry {
 public:
  std::shared_ptr<TableChanges> Find(tensorflow::Var* var) {
    if (size_.load(std::memory_order_relaxed) == 0) return nullptr;
    std::lock_guard<std::mutex> lock(mu_);
    const auto at = records_.find(var);
    if (at == records_.end() || at->second.var.GetNewRef() == nullptr) return nullptr;
    return at->second.changes;
  }

  std::shared_ptr<TableChanges> FindOrAdd(tensorflow::Var* var, int64_t num_rows) {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto at = records_.begin(); at != records_.end();) {
      at = at->second.var.GetNewRef() == nullptr ? records_.erase(at) : std::next(at);
    }
    auto& record = records_[var];
    if (record.changes == nullptr || record.changes->rows.num_rows() != num_rows) {
      record.var = tensorflow::core::WeakPtr<tensorflow::Var>(var);
      record.changes = std::make_shared<TableChanges>(num_rows);
    }
    size_ = records_.size();
    return record.changes;
  }

  void Remove(tensorflow::Var* var, int64_t consumer) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto at = records_.find(var);
    if (at != records_.end() && at->second.changes->Remove(consumer)) records_.erase(at);
    size_ = records_.size();
  }

 private:
  struct Record {
    tensorflow::core::WeakPtr<tensorflow::Var> var;
    std::shared_ptr<TableChanges> changes;
  };
  std::atomic<size_t> size_{0};
  std::mutex mu_;
  std::unordered_map<tensorflow::Var*, Record> records_;
};

TableChangesRegistry& GetTableChanges() {
  static auto* const registry =
      new TableChangesRegistry;  // never destroyed: kernels may outlive this file
  return *registry;
}

// A buffer in the place of another one, which it owns, that tells when it ends. TensorFlow writes a
// buffer in place only if it has one reference, so a watched one must not have more.
class WatchedBuffer : public tensorflow::TensorBuffer {
 public:
  using Flag = std::shared_ptr<std::atomic<bool>>;

  // Lets a tensor have a watched buffer, and returns the flag that is set when it ends. The
  // exclusive lock of the tensor's variable is held.
  static Flag Watch(Tensor* tensor) {
    const void* const data = tensor->data();
    if (data == nullptr || tensor->NumElements() == 0) return nullptr;
    const auto made = std::make_shared<std::atomic<bool>>(false);
    auto* const buffer = new WatchedBuffer(*tensor, made);
    const tensorflow::core::ScopedUnref unref(buffer);
    {
      std::lock_guard<std::mutex> lock(Mutex());
      auto& known = Watched()[data];
      if (Flag flag = known.lock(); flag != nullptr) {
        buffer->is_known_ = false;
        return flag;
      }
      known = made;
      buffer->is_known_ = true;
    }
    *tensor = Tensor(tensor->dtype(), tensor->shape(), buffer);
    return made;
  }

  ~WatchedBuffer() override {
    *flag_ = true;
    if (!is_known_) return;
    std::lock_guard<std::mutex> lock(Mutex());
    Watched().erase(data());
  }

  size_t size() const override { return inner_.TotalBytes(); }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return inner_.RefCountIsOne(); }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(size()));
  }

 private:
  WatchedBuffer(const Tensor& inner, Flag flag)
      : TensorBuffer(inner.data()), inner_(inner), flag_(std::move(flag)) {}

  // The watched buffers that exist, by their address.
  static std::mutex& Mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::unordered_map<const void*, std::weak_ptr<std::atomic<bool>>>& Watched() {
    static auto* const watched =
        new std::unordered_map<const void*, std::weak_ptr<std::atomic<bool>>>;
    return *watched;
  }

  const Tensor inner_;
  const Flag flag_;
  bool is_known_ = false;  // in Watched()
};

absl::Status ScalarInput(OpKernelContext* ctx, const char* name, int64_t* value) {
  const Tensor* input;
  TF_RETURN_IF_ERROR(ctx->input(name, &input));
  TF_RETURN_IF_ERROR(ToAbslStatus(CheckRank(*input, 0, name)));
  *value = input->scalar<int64_t>()();
  return absl::OkStatus();
}

class TakeChangedRowsOp : public Kernel {
 public:
  explicit TakeChangedRowsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &num_vars_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copies", &copies_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    int64_t consumer;
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "consumer", &consumer));
    LockedTables tables;
    TF_RETURN_IF_ERROR(tables.Add(ctx, 0, num_vars_, Access::kUpdate));
    if (!tables.distinct()) {
      return absl::InvalidArgumentError("variables must be different variables");
    }
    tables.Lock();
    TF_RETURN_IF_ERROR(CheckVariables(ctx, tables));
    LockedTieredTable tiered;
    auto in_file = FindTieredTable(tables.var(0));
    const bool is_tiered = in_file != nullptr;
    if (is_tiered) TF_RETURN_IF_ERROR(tiered.Use(ctx, std::move(in_file), &tables, num_vars_));
    const int64_t num_rows = is_tiered ? tiered->num_rows() : tables.tensor(0).dim_size(0);
    const auto changes = FindOrAddTableChanges(tables.var(0), num_rows);
    for (int i = 0; i < num_vars_; ++i) {
      changes->NoticeAssignment(tables.var(i));
      changes->Watch(tables.var(i));
    }
    const int64_t cursor = changes->Cursor(consumer);
    const bool all = changes->rows.AllAfter(cursor);
    const std::vector<int64_t> ids = all ? std::vector<int64_t>() : changes->rows.After(cursor);
    const int64_t count = all && copies_ ? num_rows : static_cast<int64_t>(ids.size());
    Tensor *out_ids, *out_all, *out_interval;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "ids", {static_cast<int64_t>(ids.size())}, &out_ids));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, "all", {}, &out_all));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 2, "interval", {}, &out_interval));
    std::copy(ids.begin(), ids.end(), out_ids->flat<int64_t>().data());
    out_all->scalar<bool>()() = all;
    std::vector<char*> parts;
    for (int i = 0; i < num_vars_; ++i) {
      const Tensor& table = tables.tensor(i);
      auto dims = table.shape().dim_sizes();
      dims[0] = count;
      Tensor* rows;
      TF_RETURN_IF_ERROR(AllocateOutput(ctx, 3 + i, "rows", dims, &rows));
      parts.push_back(static_cast<char*>(rows->data()));
      if (!is_tiered) {
        Copy(ctx, table, all ? nullptr : ids.data(), count, rows);
      } else if (all && copies_) {
        TF_RETURN_IF_ERROR(
            ToTieredStatus(tiered->ReadPart(i, 0, num_rows, tiered.cache(), parts.back())));
      }
    }
    if (is_tiered && !all) {
      TF_RETURN_IF_ERROR(ToTieredStatus(tiered->ReadRows(ids, tiered.cache(), parts)));
    }
    out_interval->scalar<int64_t>()() = changes->rows.EndInterval();
    return absl::OkStatus();
  }

  absl::Status CheckVariables(OpKernelContext* ctx, const LockedTables& tables) const {
    for (int i = 0; i < num_vars_; ++i) {
      const Tensor& t = tables.tensor(i);
      if (!t.IsInitialized()) {
        return absl::FailedPreconditionError(absl::StrCat("variables[", i, "] is not initialized"));
      }
      TF_RETURN_IF_ERROR(ToAbslStatus(CheckRows(t, "variables")));
      if (t.dim_size(0) != tables.tensor(0).dim_size(0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("variables[", i, "] must have as many rows as variables[0], ",
                         tables.tensor(0).dim_size(0), ", got ", t.dim_size(0)));
      }
      if (t.dtype() != ctx->expected_output_dtype(3 + i) ||
          !tensorflow::DataTypeCanUseMemcpy(t.dtype())) {
        return absl::InvalidArgumentError(
            absl::StrCat("variables[", i, "] must be ",
                         tensorflow::DataTypeString(ctx->expected_output_dtype(3 + i)),
                         ", a number, got ", tensorflow::DataTypeString(t.dtype())));
      }
    }
    return absl::OkStatus();
  }

  // Copies the rows `ids`, or all if it is null.
  static void Copy(OpKernelContext* ctx, const Tensor& table, const int64_t* ids, int64_t count,
                   Tensor* rows) {
    const int64_t bytes = RowSize(table.shape()) * tensorflow::DataTypeSize(table.dtype());
    if (bytes == 0) return;
    const auto* const from = static_cast<const char*>(table.data());
    auto* const to = static_cast<char*>(rows->data());
    IntraOp(ctx)(count, bytes / 8 + 20, [&](int64_t begin, int64_t end) {
      if (ids == nullptr) {
        std::memcpy(to + begin * bytes, from + begin * bytes, (end - begin) * bytes);
        return;
      }
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(to + i * bytes, from + ids[i] * bytes, bytes);
    });
  }

  int num_vars_;
  bool copies_;
};

class KeepChangedRowsOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    int64_t consumer, interval;
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "consumer", &consumer));
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "interval", &interval));
    LockedTables table;
    TF_RETURN_IF_ERROR(table.Add(ctx, 0, 1, Access::kRead));
    table.Lock();
    const auto changes = FindTableChanges(table.var(0));
    if (changes != nullptr) changes->SetCursor(consumer, interval);
    return absl::OkStatus();
  }
};

class ReleaseChangedRowsOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    int64_t consumer;
    TF_RETURN_IF_ERROR(ScalarInput(ctx, "consumer", &consumer));
    LockedTables table;
    TF_RETURN_IF_ERROR(table.Add(ctx, 0, 1, Access::kUpdate));
    table.Lock();
    RemoveConsumer(table.var(0), consumer);
    return absl::OkStatus();
  }
};

template <class Id>
class MarkChangedRowsOp : public Kernel {
 public:
  explicit MarkChangedRowsOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("all", &all_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    LockedTables table;
    TF_RETURN_IF_ERROR(table.Add(ctx, 0, 1, Access::kRead));
    table.Lock();
    const auto changes = FindTableChanges(table.var(0));
    if (changes == nullptr) return absl::OkStatus();
    if (all_) {
      changes->rows.MarkAll();
    } else {
      changes->rows.Mark(SpanOf<Id>(ctx->input(1)), IntraOp(ctx));
    }
    return absl::OkStatus();
  }

  bool all_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>TakeChangedRows").Device(DEVICE_CPU), TakeChangedRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>KeepChangedRows").Device(DEVICE_CPU), KeepChangedRowsOp);
REGISTER_KERNEL_BUILDER(Name("Twml>ReleaseChangedRows").Device(DEVICE_CPU), ReleaseChangedRowsOp);
REGISTER_KERNEL_BUILDER(
    Name("Twml>MarkChangedRows").Device(DEVICE_CPU).TypeConstraint<int32_t>("T"),
    MarkChangedRowsOp<int32_t>);
REGISTER_KERNEL_BUILDER(
    Name("Twml>MarkChangedRows").Device(DEVICE_CPU).TypeConstraint<int64_t>("T"),
    MarkChangedRowsOp<int64_t>);

}  // namespace

void TableChanges::Watch(tensorflow::Var* var, Known* known) {
  known->ended = WatchedBuffer::Watch(var->tensor());
  known->buffer = var->tensor()->data();
}

std::shared_ptr<TableChanges> FindTableChanges(tensorflow::Var* var) {
  return GetTableChanges().Find(var);
}

std::shared_ptr<TableChanges> FindOrAddTableChanges(tensorflow::Var* var, int64_t num_rows) {
  return GetTableChanges().FindOrAdd(var, num_rows);
}

void RemoveConsumer(tensorflow::Var* var, int64_t consumer) {
  GetTableChanges().Remove(var, consumer);
}

}  // namespace twml
