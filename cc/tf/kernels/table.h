// Tables (resource variables) that are read and written in place.
#ifndef TWML_TF_KERNELS_TABLE_H_
#define TWML_TF_KERNELS_TABLE_H_

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "cc/core/huge_pages.h"
#include "cc/core/sparse_linear.h"
#include "cc/tf/kernels/tensor_util.h"

namespace twml {

// The data types that a kernel accepts for a table.
enum class TableDType { kFloat32, kFloat32OrBfloat16, kFloat64 };

inline absl::Status CheckTable(const tensorflow::Tensor& t, const char* name,
                               TableDType dtype = TableDType::kFloat32) {
  if (!t.IsInitialized()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is not initialized"));
  }
  if (dtype == TableDType::kFloat64) {
    if (t.dtype() == tensorflow::DT_DOUBLE) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be float64, got ", tensorflow::DataTypeString(t.dtype())));
  }
  const bool allow_bfloat16 = dtype == TableDType::kFloat32OrBfloat16;
  if (t.dtype() != tensorflow::DT_FLOAT &&
      !(allow_bfloat16 && t.dtype() == tensorflow::DT_BFLOAT16)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must be float32",
                                                   allow_bfloat16 ? " or bfloat16" : "", ", got ",
                                                   tensorflow::DataTypeString(t.dtype())));
  }
  return absl::OkStatus();
}

// Calls body(W{}) with the weight type of a table that was checked.
template <class Body>
absl::Status VisitWeightType(const tensorflow::Tensor& table, Body body) {
  return table.dtype() == tensorflow::DT_FLOAT ? body(float{}) : body(Bfloat16{});
}

// The number of items per row of a tensor of rank >= 1. All dimensions after the first form a row.
inline int64_t RowSize(const tensorflow::TensorShape& shape) {
  int64_t size = 1;
  for (int d = 1; d < shape.dims(); ++d) size *= shape.dim_size(d);
  return size;
}
template <class W = float>
Matrix<const W> MatrixOf(const tensorflow::Tensor& t) {
  return {static_cast<const W*>(t.data()), t.dim_size(0), RowSize(t.shape())};
}
inline Status CheckRows(const tensorflow::Tensor& t, const char* name) {
  if (t.dims() < 1) return Invalid(name, " must have rank 1 or more, got a scalar");
  int64_t size = 1;  // may overflow if there are no rows
  for (int d = 1; d < t.dims(); ++d) {
    if (__builtin_mul_overflow(size, t.dim_size(d), &size)) {
      return Invalid(name, " must have rows of less than 2^63 items, got shape ",
                     t.shape().DebugString());
    }
  }
  return Status();
}

// How a kernel uses a variable. kUpdate and kHogwild write it in place; several kHogwild updates
// may run concurrently.
enum class Access { kRead, kUpdate, kHogwild };

// The variables of a kernel, which are looked up and then locked together while their tables are in
// use. kRead and kHogwild take shared locks and kUpdate takes exclusive locks. Each lock is taken
// once, and always in the same order, so two kernels cannot deadlock. Tables are accessed through
// their variables, because a second reference to a buffer would make the next in-place write copy
// it.
//
// Hogwild: under a shared lock a buffer may be written, but not replaced. The first Hogwild update
// therefore takes the exclusive lock, copies the buffer if there are other references to it, and
// sets the variable's copy_on_read_mode. From then on the dense reads and assignments of TensorFlow
// copy, so updates under the shared lock find no other references to the buffer. Saving a
// checkpoint ends this mode, and the next update starts it again.
class LockedTables {
 public:
  LockedTables() = default;
  LockedTables(const LockedTables&) = delete;
  LockedTables& operator=(const LockedTables&) = delete;
  ~LockedTables() { Unlock(); }

  // Looks up the variables of `count` inputs and appends them to the tables. Call it before Lock.
  absl::Status Add(tensorflow::OpKernelContext* ctx, int first_input, int count, Access access) {
    for (int i = first_input; i < first_input + count; ++i) {
      if (ctx->input(i).NumElements() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("input ", i, " must be one variable, got ", ctx->input(i).NumElements()));
      }
      tensorflow::core::RefCountPtr<tensorflow::Var> var;
      TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, i), &var));
      Add(std::move(var), access);
    }
    return absl::OkStatus();
  }
  void Add(tensorflow::core::RefCountPtr<tensorflow::Var> var, Access access) {
    tensorflow::mutex* const mu = var->mu();
    tables_.push_back({std::move(var), access});
    const auto at = std::find_if(locks_.begin(), locks_.end(),
                                 [mu](const HeldLock& lock) { return lock.mu >= mu; });
    if (at == locks_.end() || at->mu != mu) {
      locks_.insert(at, {mu, access != Access::kUpdate});
    } else if (access == Access::kUpdate) {
      at->shared = false;
    }
  }

  int size() const { return static_cast<int>(tables_.size()); }

  // Whether all variables are different.
  bool distinct() const { return locks_.size() == tables_.size(); }

  void Lock() {
    LockAll();
    if (std::all_of(tables_.begin(), tables_.end(), ReadyUnderLock)) return;
    Unlock();
    for (HeldLock& lock : locks_) lock.shared = false;
    all_exclusive_ = true;
    LockAll();
  }

  const tensorflow::Tensor& tensor(int i = 0) const { return *tables_[i].var->tensor(); }
  tensorflow::Var* var(int i) const { return tables_[i].var.get(); }

  // The buffer of table i, whose access is kUpdate or kHogwild. The buffer is copied first if there
  // are other references to it.
  template <class T>
  absl::Status MutableData(tensorflow::OpKernelContext* ctx, int i, T** data) {
    tensorflow::Var& var = *tables_[i].var;
    tensorflow::Tensor* const table = var.tensor();
    // Under a shared lock the buffer is written even if a reader has taken a reference since Lock
    // checked it, because replacing the buffer would lose the writes of other updates.
    if ((all_exclusive_ || tables_[i].access == Access::kUpdate) && !HasOneReference(*table)) {
      tensorflow::AllocatorAttributes on_host;
      on_host.set_on_host(true);
      tensorflow::Tensor copy;
      const absl::Status allocated =
          ctx->allocate_temp(table->dtype(), table->shape(), &copy, on_host);
      if (!allocated.ok()) {
        return AllocationError("a copy of the table", table->shape().dim_sizes(), table->dtype(),
                               allocated);
      }
      std::memcpy(copy.data(), table->data(), table->TotalBytes());
      *table = copy;
    }
    if (tables_[i].access == Access::kHogwild) var.copy_on_read_mode.store(true);
    *data = static_cast<T*>(table->data());
    return absl::OkStatus();
  }

 private:
  struct Table {
    tensorflow::core::RefCountPtr<tensorflow::Var> var;
    Access access;
  };
  struct HeldLock {
    tensorflow::mutex* mu;
    bool shared;
  };

  static bool HasOneReference(const tensorflow::Tensor& t) {
    return t.NumElements() == 0 || t.RefCountIsOne();
  }
  // Whether a table may be used under the kind of lock that its access requires.
  static bool ReadyUnderLock(const Table& table) {
    return table.access != Access::kHogwild ||
           (table.var->copy_on_read_mode.load() && HasOneReference(*table.var->tensor()));
  }

  void LockAll() {
    for (const HeldLock& lock : locks_) lock.shared ? lock.mu->lock_shared() : lock.mu->lock();
    locked_ = true;
  }
  void Unlock() {
    if (!locked_) return;
    for (const HeldLock& lock : locks_) lock.shared ? lock.mu->unlock_shared() : lock.mu->unlock();
    locked_ = false;
  }

  absl::InlinedVector<Table, 4> tables_;
  absl::InlinedVector<HeldLock, 4> locks_;  // each lock once, in ascending order
  bool locked_ = false;
  bool all_exclusive_ = false;
};

// Looks up, locks and checks `count` tables for reading.
inline absl::Status LockForReading(tensorflow::OpKernelContext* ctx, int first_input, int count,
                                   TableDType dtype, LockedTables* tables) {
  TF_RETURN_IF_ERROR(tables->Add(ctx, first_input, count, Access::kRead));
  tables->Lock();
  for (int i = 0; i < count; ++i) {
    TF_RETURN_IF_ERROR(CheckTable(tables->tensor(i), "weights", dtype));
  }
  return absl::OkStatus();
}

}  // namespace twml

#endif  // TWML_TF_KERNELS_TABLE_H_
