// Tables (resource variables) read and written in place.
#ifndef TWML_TF_KERNELS_TABLE_H_
#define TWML_TF_KERNELS_TABLE_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "cc/core/huge_pages.h"
#include "cc/core/sparse_linear.h"
#include "cc/tf/kernels/common.h"

namespace twml {

// What a table may be stored as.
enum class Stored { kFloat32, kFloat32OrBfloat16, kFloat64 };

inline absl::Status CheckTable(const tensorflow::Tensor& t, const char* name,
                               Stored stored = Stored::kFloat32) {
  if (!t.IsInitialized()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is not initialized"));
  }
  if (stored == Stored::kFloat64) {
    if (t.dtype() == tensorflow::DT_DOUBLE) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be float64, got ", tensorflow::DataTypeString(t.dtype())));
  }
  const bool narrow = stored == Stored::kFloat32OrBfloat16;
  if (t.dtype() != tensorflow::DT_FLOAT && !(narrow && t.dtype() == tensorflow::DT_BFLOAT16)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must be float32",
                                                   narrow ? " or bfloat16" : "", ", got ",
                                                   tensorflow::DataTypeString(t.dtype())));
  }
  return absl::OkStatus();
}

// Runs `body(W{})` with the type of a checked table's weights.
template <class Body>
absl::Status WithWeightType(const tensorflow::Tensor& table, Body body) {
  return table.dtype() == tensorflow::DT_FLOAT ? body(float{}) : body(Bfloat16{});
}

// A tensor of rank >= 1 as rows: whatever follows the first dimension is one row.
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
  if (t.dims() >= 1) return Status();
  return Invalid(name, " must have rank 1 or more, got a scalar");
}

// Holds the shared lock of a variable while its table is read. A second reference to its buffer
// would make the next in-place write copy the table.
class ReadTable {
 public:
  absl::Status Open(tensorflow::OpKernelContext* ctx, int input, const char* name = "weights",
                    Stored stored = Stored::kFloat32) {
    TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, input), &var_));
    var_->mu()->lock_shared();
    locked_ = true;
    TF_RETURN_IF_ERROR(CheckTable(*var_->tensor(), name, stored));
    return absl::OkStatus();
  }
  ~ReadTable() {
    if (locked_) var_->mu()->unlock_shared();
  }
  const tensorflow::Tensor& tensor() const { return *var_->tensor(); }

 private:
  tensorflow::core::RefCountPtr<tensorflow::Var> var_;
  bool locked_ = false;
};

// Holds the shared locks of several variables, of which some may be the same, while their tables
// are read. Locks are taken once each and in one order everywhere: a writer that waits between two
// readers would otherwise stop both.
class ReadTables {
 public:
  absl::Status Open(tensorflow::OpKernelContext* ctx, int first_input, int count, Stored stored) {
    vars_.resize(count);
    std::vector<tensorflow::mutex*> locks;
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, first_input + i), &vars_[i]));
      locks.push_back(vars_[i]->mu());
    }
    std::sort(locks.begin(), locks.end());
    locks.erase(std::unique(locks.begin(), locks.end()), locks.end());
    for (auto* mu : locks) mu->lock_shared();
    locks_ = std::move(locks);  // held from here on, to be unlocked
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(CheckTable(tensor(i), "weights", stored));
    }
    return absl::OkStatus();
  }
  ~ReadTables() {
    for (auto* mu : locks_) mu->unlock_shared();
  }
  const tensorflow::Tensor& tensor(int i) const { return *vars_[i]->tensor(); }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> vars_;
  std::vector<tensorflow::mutex*> locks_;
};

// Holds the locks of variables (a table and its slots) that are about to be written in place:
// exclusive ones, or, for Hogwild, shared ones. Locks are taken in one order everywhere, so two ops
// cannot wait for each other.
class WriteTables {
 public:
  absl::Status Open(tensorflow::OpKernelContext* ctx, int first_input, int count,
                    Stored stored = Stored::kFloat32, bool hogwild = false) {
    vars_.resize(count);
    std::vector<tensorflow::mutex*> locks;
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, first_input + i), &vars_[i]));
      locks.push_back(vars_[i]->mu());
    }
    std::sort(locks.begin(), locks.end());
    if (std::adjacent_find(locks.begin(), locks.end()) != locks.end()) {
      return absl::InvalidArgumentError("var and slots must be different variables");
    }
    locks_ = std::move(locks);
    Lock(hogwild);
    if (hogwild && !OwnsBuffers()) {  // they will be copied, which nobody else may watch
      Unlock();
      Lock(false);
    }
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(i == 0 ? CheckTable(tensor(i), "var", stored)
                                : CheckTable(tensor(i), "slots"));
    }
    return absl::OkStatus();
  }
  ~WriteTables() { Unlock(); }
  const tensorflow::Tensor& tensor(int i) const { return *vars_[i]->tensor(); }

  // The buffer of table i, to be written. Copied once if somebody else holds it.
  template <class T>
  absl::Status Writable(tensorflow::OpKernelContext* ctx, int i, T** data) {
    tensorflow::Tensor* table = vars_[i]->tensor();
    if (!table->RefCountIsOne()) {
      tensorflow::AllocatorAttributes on_host;
      on_host.set_on_host(true);
      tensorflow::Tensor copy;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(table->dtype(), table->shape(), &copy, on_host));
      std::memcpy(copy.data(), table->data(), table->TotalBytes());
      *table = copy;
    }
    *data = static_cast<T*>(table->data());
    return absl::OkStatus();
  }

 private:
  bool OwnsBuffers() const {
    return std::all_of(vars_.begin(), vars_.end(),
                       [](const auto& var) { return var->tensor()->RefCountIsOne(); });
  }
  void Lock(bool shared) {
    shared_ = shared;
    for (auto* mu : locks_) shared ? mu->lock_shared() : mu->lock();
    locked_ = true;
  }
  void Unlock() {
    if (!locked_) return;
    for (auto* mu : locks_) shared_ ? mu->unlock_shared() : mu->unlock();
    locked_ = false;
  }

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> vars_;
  std::vector<tensorflow::mutex*> locks_;
  bool shared_ = false;
  bool locked_ = false;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_TABLE_H_
