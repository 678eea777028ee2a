// Predictions of an exported model. A scorer is immutable, and any number of threads may use it.
#ifndef TWML_CORE_SCORER_SCORER_H_
#define TWML_CORE_SCORER_SCORER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/fork.h"
#include "cc/core/parallel.h"
#include "cc/core/scorer/plan.h"
#include "cc/core/scorer/program.h"
#include "cc/core/scorer/request.h"
#include "cc/core/status.h"

namespace twml::scorer {

class Scorer {
 public:
  // Reads the folder that export.to_scorer wrote.
  static Status Load(const std::string& folder, const TableOptions& options,
                     std::shared_ptr<const Scorer>* out);

  // The two sets of arrays that a request may have. There are no columns unless the model was
  // exported with a schema.
  const std::vector<ProgramInput>& features() const { return program_.features; }
  const std::vector<ProgramInput>& columns() const { return program_.columns; }
  // The name of the row splits of entries; empty if there are none, or the model does not use them.
  std::string row_splits_of(const ProgramInput& input) const {
    return input.row_splits == kNoRegister ? "" : program_.registers[input.row_splits].name;
  }
  // Whether tables are in files, and what was read from them.
  bool reads_files() const { return !program_.tables->empty(); }
  const TableFiles& tables() const { return *program_.tables; }
  const std::string& output_name() const { return program_.output_name; }
  // The outputs of a model with several, which are columns of the predictions; otherwise empty.
  const std::vector<ProgramOutput>& outputs() const { return program_.outputs; }

  // The shape of a row of the output, which may depend on the shapes of the request's arrays.
  Status OutputShape(const Request& request, std::vector<int64_t>* dims) const;
  // The number of floats of a row, or -1 if it depends on a request.
  int64_t output_width() const;

  // Writes the predictions, float [rows, width]; out_size is its number of floats. Rows are divided
  // among the threads of `parallel_for`; the result does not depend on how. Nothing is allocated
  // after the first requests of a size. On an error the content of `out` is undefined. If a
  // file with a table is to blame for it, and not the request, `unreadable` is set to true.
  Status Predict(const Request& request, const ParallelFor& parallel_for, float* out,
                 int64_t out_size, bool* unreadable = nullptr) const;

 private:
  Status FindPlan(const Request& request, std::shared_ptr<const Plan>* owner,
                  const Plan** plan) const;

  Program program_;
  std::unique_ptr<const Plan> features_plan_, columns_plan_;  // null: shapes are not known
  // Plans of other requests.
  struct Plans {
    std::mutex mu;
    std::vector<std::shared_ptr<const Plan>> plans;
  };
  PerProcess<Plans> plans_;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_SCORER_H_
