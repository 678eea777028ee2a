// Tables (resource variables) read and written in place.
#ifndef TWML_TF_KERNELS_TABLE_H_
#define TWML_TF_KERNELS_TABLE_H_

#include <algorithm>
#include <vector>

#include "cc/core/huge_pages.h"
#include "cc/core/sparse_linear.h"
#include "cc/tf/kernels/common.h"

namespace twml {

inline absl::Status CheckTable(const tensorflow::Tensor& t, const char* name) {
  if (!t.IsInitialized()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is not initialized"));
  }
  if (t.dtype() != tensorflow::DT_FLOAT) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be float32, got ", tensorflow::DataTypeString(t.dtype())));
  }
  return absl::OkStatus();
}

// A tensor of rank >= 1 as rows: whatever follows the first dimension is one row.
inline int64_t RowSize(const tensorflow::TensorShape& shape) {
  int64_t size = 1;
  for (int d = 1; d < shape.dims(); ++d) size *= shape.dim_size(d);
  return size;
}
inline Matrix<const float> MatrixOf(const tensorflow::Tensor& t) {
  return {t.flat<float>().data(), t.dim_size(0), RowSize(t.shape())};
}
inline Status CheckRows(const tensorflow::Tensor& t, const char* name) {
  if (t.dims() >= 1) return Status();
  return Invalid(name, " must have rank 1 or more, got a scalar");
}

// Holds the shared lock of a variable while its table is read. A second reference to its buffer
// would make the next in-place write copy the table.
class ReadTable {
 public:
  absl::Status Open(tensorflow::OpKernelContext* ctx, int input, const char* name = "weights") {
    TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, input), &var_));
    var_->mu()->lock_shared();
    locked_ = true;
    TF_RETURN_IF_ERROR(CheckTable(*var_->tensor(), name));
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

// Holds the exclusive locks of variables that are about to be written in place. Locks are taken in
// one order everywhere, so two ops cannot wait for each other.
class WriteTables {
 public:
  absl::Status Open(tensorflow::OpKernelContext* ctx, int first_input, int count) {
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
    for (auto* mu : locks) mu->lock();
    locks_ = std::move(locks);  // held from here on, to be unlocked
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(CheckTable(*vars_[i]->tensor(), i == 0 ? "var" : "slots"));
    }
    return absl::OkStatus();
  }
  ~WriteTables() {
    for (auto* mu : locks_) mu->unlock();
  }
  const tensorflow::Tensor& tensor(int i) const { return *vars_[i]->tensor(); }

  // The buffer of table i, to be written. Copied once if somebody else holds it.
  absl::Status Writable(tensorflow::OpKernelContext* ctx, int i, float** data) {
    tensorflow::Tensor* table = vars_[i]->tensor();
    if (!table->RefCountIsOne()) {
      tensorflow::AllocatorAttributes on_host;
      on_host.set_on_host(true);
      tensorflow::Tensor copy;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(table->dtype(), table->shape(), &copy, on_host));
      std::copy_n(table->flat<float>().data(), table->NumElements(), copy.flat<float>().data());
      *table = copy;
    }
    *data = table->flat<float>().data();
    return absl::OkStatus();
  }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> vars_;
  std::vector<tensorflow::mutex*> locks_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_TABLE_H_
