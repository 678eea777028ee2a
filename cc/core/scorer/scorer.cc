#include "cc/core/scorer/scorer.h"

#include <algorithm>
#include <utility>

#include "cc/core/scorer/divide_rows.h"
#include "cc/core/scorer/execution.h"

namespace twml::scorer {
namespace {

constexpr size_t kMaxPlans = 64;

bool ShapesKnown(const std::vector<ProgramInput>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const ProgramInput& input) { return input.shape_known; });
}

PlanKey KeyOf(const std::vector<ProgramInput>& inputs, bool raw) {
  PlanKey key;
  key.raw = raw;
  for (const ProgramInput& input : inputs) {
    key.dims.push_back(raw && input.form == Form::kDense ? std::vector<int64_t>{1} : input.dims);
  }
  return key;
}

// Computes a request of a model with tables in files, in parts whose rows fit into memory. The rows
// of tables that a part needs are fetched together, before it is computed.
Status PredictFromFiles(const Plan& plan, Execution* execution, Workspace* workspace, int64_t rows,
                        const ParallelFor& parallel_for, bool* unreadable) {
  constexpr int64_t kPartRows = 512;
  const TableFiles& tables = *plan.program().tables;
  const int64_t block_rows = plan.block_rows();
  const int64_t part_rows = (kPartRows + block_rows - 1) / block_rows * block_rows;
  for (int64_t begin = 0; begin < rows; begin += part_rows) {
    const int64_t end = std::min(rows, begin + part_rows);
    TWML_RETURN_IF_ERROR(execution->Collect(begin, end, workspace));
    if (Status fetched = tables.Fetch(&workspace->fetched); !fetched.ok()) {
      if (unreadable != nullptr) *unreadable = true;
      return fetched;
    }
    const FetchedRows* const fetched = &workspace->fetched;
    TWML_RETURN_IF_ERROR(execution->RunOnce(workspace, fetched));
    // Threads take the whole blocks that Collect has listed.
    const auto run = [&](int64_t first, int64_t last, Workspace* own) {
      return execution->RunRows(begin + first * block_rows,
                                std::min(end, begin + last * block_rows), own, fetched, 1 + first);
    };
    const int64_t blocks = (end - begin + block_rows - 1) / block_rows;
    TWML_RETURN_IF_ERROR(blocks == 1 ? run(0, 1, workspace)
                                     : DivideRows(plan, blocks, plan.cost_of_row() * block_rows,
                                                  parallel_for, workspace, run));
  }
  return Status();
}

}  // namespace

Status Scorer::Load(const std::string& folder, const TableOptions& options,
                    std::shared_ptr<const Scorer>* out) {
  auto scorer = std::make_shared<Scorer>();
  TWML_RETURN_IF_ERROR(Program::Read(folder, options, &scorer->program_));
  const Program& program = scorer->program_;
  for (const bool raw : {false, true}) {
    const auto& inputs = raw ? program.columns : program.features;
    if (inputs.empty() || !ShapesKnown(inputs)) continue;
    auto* const plan = raw ? &scorer->columns_plan_ : &scorer->features_plan_;
    const Status made = Plan::Make(program, KeyOf(inputs, raw), plan);
    if (!made.ok()) return Invalid(folder, ": ", made.message());
  }
  *out = std::move(scorer);
  return Status();
}

int64_t Scorer::output_width() const {
  const Plan* const plan = features_plan_ != nullptr ? features_plan_.get() : columns_plan_.get();
  return plan == nullptr ? -1 : plan->shapes()[program_.output].width;
}

Status Scorer::FindPlan(const Request& request, std::shared_ptr<const Plan>* owner,
                        const Plan** plan) const {
  const auto& inputs = request.raw ? program_.columns : program_.features;
  const auto size = static_cast<int64_t>(inputs.size());
  if (request.raw && inputs.empty()) {
    return Invalid("the model was exported without a schema and takes no columns");
  }
  const bool ranking = request.user.size() > 0;
  if (request.arrays.size() != size || (ranking && request.user.size() != size)) {
    return Invalid("a request must have ", size, " arrays, got ", request.arrays.size());
  }
  if (request.rows < 0 || request.rows > INT64_MAX >> 24) {
    return Invalid("the number of rows must be in [0, 2^39), got ", request.rows);
  }
  *plan = request.raw ? columns_plan_.get() : features_plan_.get();
  if (*plan != nullptr && !ranking) return Status();
  PlanKey key = KeyOf(inputs, request.raw);
  key.ranking = ranking;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (ranking) {
      const RequestArray& user = request.user[i];
      key.constant.push_back(!IsSparse(inputs[i].form) ? user.data != nullptr || user.size > 0
                                                       : false);
    }
    if (inputs[i].shape_known) continue;
    const bool of_user = ranking && key.constant.back();
    const RequestArray& array = of_user ? request.user[i] : request.arrays[i];
    const int64_t rows = of_user ? 1 : request.rows;
    if (array.dims != nullptr) {
      key.dims[i] = *array.dims;
    } else if (rows > 0) {
      key.dims[i] = {array.size / rows};
    } else {
      return Invalid("the shape of '", inputs[i].name, "' is not known without rows");
    }
  }
  if (ranking) {
    // A sparse batch that is not split is of the user if the user has its row splits.
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!IsSparse(inputs[i].form)) continue;
      const bool own = inputs[i].form == Form::kRowSplits && inputs[i].r != kNoRegister;
      const int64_t splits = own ? static_cast<int64_t>(i) : inputs[i].splits_input;
      if (splits >= 0) key.constant[i] = request.user[splits].data != nullptr;
    }
  }
  Plans& own = plans_.Get();
  std::lock_guard<std::mutex> lock(own.mu);
  for (const auto& known : own.plans) {
    if (!(known->key() == key)) continue;
    *owner = known;
    *plan = known.get();
    return Status();
  }
  std::unique_ptr<const Plan> made;
  TWML_RETURN_IF_ERROR(Plan::Make(program_, std::move(key), &made));
  *owner = std::move(made);
  *plan = owner->get();
  if (own.plans.size() >= kMaxPlans) own.plans.erase(own.plans.begin());
  own.plans.push_back(*owner);
  return Status();
}

Status Scorer::OutputShape(const Request& request, std::vector<int64_t>* dims) const {
  std::shared_ptr<const Plan> owner;
  const Plan* plan;
  TWML_RETURN_IF_ERROR(FindPlan(request, &owner, &plan));
  *dims = plan->shapes()[program_.output].dims;
  return Status();
}

Status Scorer::Predict(const Request& request, const ParallelFor& parallel_for, float* out,
                       int64_t out_size, bool* unreadable) const {
  std::shared_ptr<const Plan> owner;
  const Plan* plan;
  TWML_RETURN_IF_ERROR(FindPlan(request, &owner, &plan));
  const int64_t width = plan->shapes()[program_.output].width;
  if (out_size != request.rows * width) {
    return Invalid("out must have ", request.rows * width, " floats, ", width,
                   " for each row, got ", out_size);
  }
  TWML_RETURN_IF_ERROR(CheckRequest(*plan, request));
  Execution execution(*plan, request, out);
  if (request.rows == 0) return Status();
  const BorrowedWorkspace first(*plan);
  if (reads_files()) {
    return PredictFromFiles(*plan, &execution, first.get(), request.rows, parallel_for, unreadable);
  }
  TWML_RETURN_IF_ERROR(execution.RunOnce(first.get()));
  if (request.rows <= plan->block_rows()) {
    return execution.RunRows(0, request.rows, first.get());
  }
  return DivideRows(*plan, request.rows, plan->cost_of_row(), parallel_for, first.get(),
                    [&](int64_t begin, int64_t end, Workspace* workspace) {
                      return execution.RunRows(begin, end, workspace);
                    });
}

}  // namespace twml::scorer
