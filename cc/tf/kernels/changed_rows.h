// The records of changed rows of this process's variables (cc/core/changed_rows.h).
//
// A variable has a record while it has consumers. The kernels that write tables ask for it under
// the table's lock, which costs one comparison if no variable has a record. Writers that are no
// kernels of this library are noticed by the address of the buffer, which TensorFlow's assignments
// replace; those that write in place have to run MarkChangedRows.
#ifndef TWML_TF_KERNELS_CHANGED_ROWS_H_
#define TWML_TF_KERNELS_CHANGED_ROWS_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/changed_rows.h"
#include "cc/tf/kernels/table.h"

namespace twml {

class TableChanges {
 public:
  explicit TableChanges(int64_t num_rows) : rows(num_rows) {}

  // Marks all rows if the buffer of a variable (the table or one of its slots) is not the one of
  // the last call. An update calls it before it writes, and Expect for the buffer that it writes.
  void NoticeAssignment(const tensorflow::Var& var, const void* buffer) {
    std::lock_guard<std::mutex> lock(mu_);
    const void*& known = BufferOf(var);
    if (known != nullptr && known != buffer) rows.MarkAll();
    known = buffer;
  }
  void Expect(const tensorflow::Var& var, const void* buffer) {
    std::lock_guard<std::mutex> lock(mu_);
    BufferOf(var) = buffer;
  }

  // The interval up to whose end a consumer has the rows.
  int64_t Cursor(int64_t consumer) {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [who, interval] : cursors_) {
      if (who == consumer) return interval;
    }
    cursors_.emplace_back(consumer, ChangedRows::kNothing);
    return ChangedRows::kNothing;
  }
  // Unknown consumers are ignored: they have no rows.
  void SetCursor(int64_t consumer, int64_t interval) {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto& [who, current] : cursors_) {
      if (who == consumer) current = std::max(current, interval);
    }
  }
  // Returns whether there is no consumer left.
  bool Remove(int64_t consumer) {
    std::lock_guard<std::mutex> lock(mu_);
    cursors_.erase(std::remove_if(cursors_.begin(), cursors_.end(),
                                  [=](const auto& each) { return each.first == consumer; }),
                   cursors_.end());
    return cursors_.empty();
  }

  ChangedRows rows;

 private:
  const void*& BufferOf(const tensorflow::Var& var) {
    for (auto& [known, buffer] : buffers_) {
      if (known == &var) return buffer;
    }
    return buffers_.emplace_back(&var, nullptr).second;
  }

  std::mutex mu_;
  std::vector<std::pair<const tensorflow::Var*, const void*>> buffers_;
  std::vector<std::pair<int64_t, int64_t>> cursors_;  // consumer -> interval
};

// The record of a variable, or null. The caller has a lock of the variable.
std::shared_ptr<TableChanges> FindTableChanges(tensorflow::Var* var);

// The record of a variable, which is made if there is none. The caller has the exclusive lock.
std::shared_ptr<TableChanges> FindOrAddTableChanges(tensorflow::Var* var, int64_t num_rows);

// Removes a consumer, and the record with the last one.
void RemoveConsumer(tensorflow::Var* var, int64_t consumer);

}  // namespace twml

#endif  // TWML_TF_KERNELS_CHANGED_ROWS_H_
