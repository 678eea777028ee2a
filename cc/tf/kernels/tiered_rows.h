// Tables whose rows are in a file, with a variable as the cache of some of them.
//
// A variable has such rows while the resource that OpenTieredRows returned exists, or on a server
// from OpenServerRows to CloseServerRows. Kernels that use tables find them by the variable, which
// costs one comparison if there are none in the process.
#ifndef TWML_TF_KERNELS_TIERED_ROWS_H_
#define TWML_TF_KERNELS_TIERED_ROWS_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/tiered_rows.h"
#include "cc/tf/kernels/table.h"

namespace twml {

// ToAbslStatus, which tells errors of the file from invalid arguments.
inline absl::Status ToTieredStatus(const Status& s) {
  return IsFileStatus(s) ? absl::UnknownError(s.message()) : ToAbslStatus(s);
}

// The core's rows, and the variables that are the matrices of the cache: the table, then its slots.
// The rows may only be used with the exclusive locks of these variables.
class TieredTable : public tensorflow::ResourceBase {
 public:
  using Var = tensorflow::core::RefCountPtr<tensorflow::Var>;

  TieredTable(tensorflow::Var* table, std::unique_ptr<TieredRows> rows);
  ~TieredTable() override;

  std::string DebugString() const override { return "rows of a table in a file"; }
  TieredRows* rows() const { return rows_.get(); }

  // Whether this variable, and not one before it at the same address, is the table.
  bool IsOf(tensorflow::Var* var) const;
  // The variables; empty if the table no longer exists.
  std::vector<Var> Variables() const;
  void SetSlots(std::vector<Var> slots);

 private:
  const std::unique_ptr<TieredRows> rows_;
  tensorflow::core::WeakPtr<tensorflow::Var> table_;
  tensorflow::Var* const address_;
  mutable std::mutex mu_;
  std::vector<Var> slots_;
};

// The rows of a variable, or null.
tensorflow::core::RefCountPtr<TieredTable> FindTieredTable(tensorflow::Var* var);

// The locked variables of tiered rows.
class LockedTieredTable {
 public:
  // Locks and checks the table and its slots.
  absl::Status Lock(OpKernelContext* ctx, tensorflow::core::RefCountPtr<TieredTable> table);
  // The same for variables that are locked for an update already: the first ones of `tables`.
  absl::Status Use(OpKernelContext* ctx, tensorflow::core::RefCountPtr<TieredTable> table,
                   LockedTables* tables, int count);

  const Tensor& weights() const { return tables_->tensor(0); }
  int num_parts() const { return static_cast<int>(parts_.size()); }
  const Tensor& part(int i) const { return tables_->tensor(i); }
  TieredRows::Cache cache() const { return {parts_.data(), static_cast<int64_t>(parts_.size())}; }
  TieredRows* operator->() const { return table_->rows(); }

 private:
  absl::Status TakeParts(OpKernelContext* ctx);

  tensorflow::core::RefCountPtr<TieredTable> table_;
  std::unique_ptr<LockedTables> own_;
  LockedTables* tables_ = nullptr;
  std::vector<char*> parts_;
};

}  // namespace twml

#endif  // TWML_TF_KERNELS_TIERED_ROWS_H_
