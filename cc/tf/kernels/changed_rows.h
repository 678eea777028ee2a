// The records of changed rows of this process's variables (cc/core/changed_rows.h).
//
// A variable has a record while it has consumers. The kernels that write tables ask for it under
// the table's lock, which costs one comparison if no variable has a record. Writers that are no
// kernels of this library are noticed by the buffer, which TensorFlow's assignments replace:
// another address, or the end of the buffer that a consumer has seen, whose address a later one may
// have got. Those that write in place have to run MarkChangedRows.
#ifndef TWML_TF_KERNELS_CHANGED_ROWS_H_
#define TWML_TF_KERNELS_CHANGED_ROWS_H_

#include <algorithm>
#include <atomic>
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
  void NoticeAssignment(tensorflow::Var* var) {
    const void* const buffer = var->tensor()->data();
    std::lock_guard<std::mutex> lock(mu_);
    Known& known = KnownOf(var);
    const bool ended = known.ended != nullptr && known.ended->load();
    if (known.buffer != nullptr && (known.buffer != buffer || ended)) rows.MarkAll();
    known.buffer = buffer;
  }
  // The buffer may be a copy of the one before, if the caller has the exclusive lock.
  void Expect(tensorflow::Var* var) {
    std::lock_guard<std::mutex> lock(mu_);
    Known& known = KnownOf(var);
    if (known.buffer != var->tensor()->data()) Watch(var, &known);
  }
  // Begins to watch the buffer, so that its end is noticed. The caller has the exclusive lock.
  void Watch(tensorflow::Var* var) {
    std::lock_guard<std::mutex> lock(mu_);
    Watch(var, &KnownOf(var));
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
  struct Known {
    const tensorflow::Var* var;
    const void* buffer = nullptr;
    std::shared_ptr<const std::atomic<bool>> ended;  // null: not watched
  };
  Known& KnownOf(const tensorflow::Var* var) {
    for (Known& known : known_) {
      if (known.var == var) return known;
    }
    return known_.emplace_back(Known{var, nullptr, nullptr});
  }
  static void Watch(tensorflow::Var* var, Known* known);

  std::mutex mu_;
  std::vector<Known> known_;
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
