// Divides the rows of a request among threads, each with a workspace of its own.
#ifndef TWML_CORE_SCORER_DIVIDE_ROWS_H_
#define TWML_CORE_SCORER_DIVIDE_ROWS_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "cc/core/parallel.h"
#include "cc/core/scorer/plan.h"
#include "cc/core/status.h"

namespace twml::scorer {

// The first error of a request by the position of its rows, whatever thread finds it first.
class FirstError {
 public:
  void Record(int64_t row, Status status) {
    std::lock_guard<std::mutex> lock(mu_);
    if (row >= row_) return;
    row_ = row;
    status_ = std::move(status);
  }
  Status Take() { return std::move(status_); }

 private:
  std::mutex mu_;
  int64_t row_ = INT64_MAX;
  Status status_;
};

// Takes a workspace of a plan and returns it.
class BorrowedWorkspace {
 public:
  explicit BorrowedWorkspace(const Plan& plan) : plan_(plan), workspace_(plan.TakeWorkspace()) {}
  ~BorrowedWorkspace() { plan_.ReturnWorkspace(std::move(workspace_)); }
  BorrowedWorkspace(const BorrowedWorkspace&) = delete;
  BorrowedWorkspace& operator=(const BorrowedWorkspace&) = delete;
  Workspace* get() const { return workspace_.get(); }

 private:
  const Plan& plan_;
  std::unique_ptr<Workspace> workspace_;
};

// Calls body(begin, end, workspace) on ranges of [0, total), and returns the first error by
// position. One of the threads uses the workspace `first`.
template <class Body>
Status DivideRows(const Plan& plan, int64_t total, int64_t cost, const ParallelFor& parallel_for,
                  Workspace* first, const Body& body) {
  FirstError error;
  std::atomic<bool> first_taken{false};
  const std::function<void(int64_t, int64_t)> range = [&](int64_t begin, int64_t end) {
    try {
      Status status;
      if (!first_taken.exchange(true)) {
        status = body(begin, end, first);
      } else {
        const BorrowedWorkspace own(plan);
        status = body(begin, end, own.get());
      }
      if (!status.ok()) error.Record(begin, std::move(status));
    } catch (const std::bad_alloc&) {
      error.Record(begin, Invalid("out of memory"));
    } catch (const std::exception& e) {  // must not reach the caller's threads
      error.Record(begin, Invalid(e.what()));
    }
  };
  parallel_for(total, cost, range);
  return error.Take();
}

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_DIVIDE_ROWS_H_
