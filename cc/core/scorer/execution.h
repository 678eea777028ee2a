// Runs the steps of a plan on the rows of a request, block by block.
#ifndef TWML_CORE_SCORER_EXECUTION_H_
#define TWML_CORE_SCORER_EXECUTION_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/core/scorer/plan.h"
#include "cc/core/scorer/request.h"
#include "cc/core/status.h"

namespace twml::scorer {

// The request must have been checked.
class Execution {
 public:
  Execution(const Plan& plan, const Request& request, float* out)
      : plan_(plan),
        program_(plan.program()),
        request_(request),
        out_(out),
        width_(plan.shapes()[program_.output].width) {}

  // Computes what is the same for all rows. `fetched`: rows of tables in files, or null.
  Status RunOnce(Workspace* workspace, const FetchedRows* fetched = nullptr);

  // Computes the rows [begin, end), whose first block has the number `block` in `fetched`.
  Status RunRows(int64_t begin, int64_t end, Workspace* workspace,
                 const FetchedRows* fetched = nullptr, int64_t block = 0) const;

  // Lists the rows of tables in files that the user and the rows [begin, end) need. The rows of the
  // user are block 0, and the first block of rows has the number 1.
  Status Collect(int64_t begin, int64_t end, Workspace* workspace);

 private:
  template <class Body>
  Status ForUser(Workspace* workspace, const std::vector<const Step*>& steps, const Body& body);
  Frame BeginBlock(int64_t first, int64_t rows, Workspace* workspace) const;
  Frame MakeFrame(int64_t rows, View* views, EntryMemory* memory, Workspace* workspace) const;
  void BindUser(const ProgramInput& input, const RequestArray& array, StringColumn* strings,
                View* view) const;
  void BindBlock(int64_t first, int64_t rows, Workspace* workspace) const;

  const Plan& plan_;
  const Program& program_;
  const Request& request_;
  float* const out_;
  const int64_t width_;
  const Workspace* base_ = nullptr;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_EXECUTION_H_
