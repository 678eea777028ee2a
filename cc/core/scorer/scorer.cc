#include "cc/core/scorer/scorer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "cc/core/csr.h"

namespace twml::scorer {
namespace {

constexpr size_t kMaxPlans = 64;

const int64_t kNoEntries[] = {0, 0};  // row splits of a row without entries

bool IsSparse(Form form) {
  return form == Form::kIds || form == Form::kValues || form == Form::kRowSplits ||
         form == Form::kBagStrings;
}

// Checks the arrays of a request, or of its user, and computes blocks of rows.
class Execution {
 public:
  Execution(const Plan& plan, const Request& request, float* out)
      : plan_(plan),
        program_(plan.program()),
        request_(request),
        out_(out),
        width_(plan.shapes()[program_.output].width) {}

  // Checks sizes and row splits. The row splits come first, as the sizes of entries follow from
  // their last item.
  Status Check() const {
    TWML_RETURN_IF_ERROR(CheckArrays(true));
    return CheckArrays(false);
  }

  // Computes what is the same for all rows. `fetched`: rows of tables in files, or null.
  Status RunOnce(Workspace* workspace, const FetchedRows* fetched = nullptr) {
    return ForUser(workspace, plan_.once(), [&](const Step& step, Frame& frame) {
      frame.fetched = fetched;
      // A step whose inputs are the same for all rows is complete.
      frame.is_base = std::any_of(step.in.begin(), step.in.end(), [&](Register r) {
        return r != kNoRegister && plan_.variation(r) == Variation::kSplit;
      });
      return step.Run(frame);
    });
  }

  // Computes the rows [begin, end), whose first block has the number `block` in `fetched`.
  Status RunRows(int64_t begin, int64_t end, Workspace* workspace,
                 const FetchedRows* fetched = nullptr, int64_t block = 0) const {
    for (int64_t first = begin; first < end; first += plan_.block_rows(), ++block) {
      const int64_t rows = std::min(plan_.block_rows(), end - first);
      const bool direct = plan_.written(program_.output);
      float* const out = out_ + first * width_;
      View& view = workspace->views[program_.output];
      const View own = view;
      Frame frame = BeginBlock(first, rows, workspace);
      if (direct) view = {out, width_};
      frame.fetched = fetched;
      frame.block = block;
      for (const Step* step : plan_.each()) TWML_RETURN_IF_ERROR(step->Run(frame));
      if (!direct) {
        const auto y = frame.In<float>(program_.output);
        for (int64_t r = 0; r < rows; ++r) std::copy_n(y[r], width_, out + r * width_);
      }
      if (direct) workspace->views[program_.output] = own;
    }
    return Status();
  }

  // Lists the rows of tables in files that the user and the rows [begin, end) need. The user's are
  // those of block 0, and the first block of rows has the number 1.
  Status Collect(int64_t begin, int64_t end, Workspace* workspace) {
    FetchedRows& fetched = workspace->fetched;
    const int64_t block_rows = plan_.block_rows();
    const int64_t blocks = (end - begin + block_rows - 1) / block_rows;
    fetched.Begin(program_.tables->size(), 1 + blocks);
    const auto collect = [&](const Step& step, Frame& frame) {
      return step.Collect(frame, &fetched);
    };
    TWML_RETURN_IF_ERROR(ForUser(workspace, plan_.collect_once(), collect));
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = begin + block * block_rows;
      Frame frame = BeginBlock(first, std::min(block_rows, end - first), workspace);
      fetched.BeginBlock(1 + block);
      for (const Step* step : plan_.collect_each()) TWML_RETURN_IF_ERROR(collect(*step, frame));
    }
    return Status();
  }

 private:
  // Calls body(step, frame) for steps on what is the same for all rows.
  template <class Body>
  Status ForUser(Workspace* workspace, const std::vector<const Step*>& steps, const Body& body) {
    base_ = workspace;
    workspace->base_entries.Reset();
    if (!plan_.key().ranking) return Status();
    const auto& inputs = plan_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].r == kNoRegister) continue;
      BindUser(inputs[i], request_.user[i], &workspace->base_strings[i],
               &workspace->base_views[inputs[i].r]);
    }
    std::fill(workspace->limits.begin(), workspace->limits.end(), 0);
    Frame frame = MakeFrame(1, workspace->base_views.data(), &workspace->base_entries, workspace);
    for (const Step* step : steps) TWML_RETURN_IF_ERROR(body(*step, frame));
    return Status();
  }

  Frame BeginBlock(int64_t first, int64_t rows, Workspace* workspace) const {
    workspace->entries.Reset();
    BindBlock(first, rows, workspace);
    std::fill(workspace->limits.begin(), workspace->limits.end(), 0);
    Frame frame = MakeFrame(rows, workspace->views.data(), &workspace->entries, workspace);
    if (plan_.key().ranking) frame.bases = base_->base_views.data();
    return frame;
  }

  Frame MakeFrame(int64_t rows, View* views, EntryMemory* memory, Workspace* workspace) const {
    Frame frame;
    frame.rows = rows;
    frame.views = views;
    frame.shapes = plan_.shapes().data();
    frame.registers = program_.registers.data();
    frame.memory = memory;
    frame.limits = workspace->limits.data();
    return frame;
  }

  // The row splits of entries of a part of the request.
  const RequestArray* SplitsOf(const ProgramInput& input, Span<const RequestArray> arrays) const {
    const auto& inputs = plan_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].r == input.row_splits) return &arrays[i];
    }
    return nullptr;
  }

  Status CheckArrays(bool row_splits) const {
    const auto& inputs = plan_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if ((inputs[i].form == Form::kRowSplits) != row_splits) continue;
      TWML_RETURN_IF_ERROR(CheckArray(inputs[i], i, request_.arrays, request_.rows));
      if (plan_.key().ranking) {
        TWML_RETURN_IF_ERROR(CheckArray(inputs[i], i, request_.user, 1));
      }
    }
    return Status();
  }

  Status CheckArray(const ProgramInput& input, size_t i, Span<const RequestArray> arrays,
                    int64_t rows) const {
    if (input.r == kNoRegister) return Status();
    const RequestArray& array = arrays[i];
    const bool strings = input.form == Form::kStrings || input.form == Form::kBagStrings;
    const int64_t bytes = strings ? array.num_bytes : array.size;
    if (array.size < 0 || bytes < 0 || (array.data == nullptr && bytes > 0)) {
      return Invalid("'", input.name, "' has no data");
    }
    const bool user = plan_.key().ranking && arrays.data() == request_.user.data();
    const Variation variation = plan_.variation(input.r);
    if (user ? variation == Variation::kVarying : variation == Variation::kConstant) {
      if (array.data == nullptr && array.size == 0) return Status();
      return Invalid("'", input.name, "' must be given for the user or for the rows, not for both");
    }
    if (variation == Variation::kSplit && array.data == nullptr && array.size == 0) {
      // No entries. The row splits are then missing, too.
      const RequestArray* const splits =
          input.form == Form::kRowSplits ? nullptr : SplitsOf(input, arrays);
      if (splits == nullptr || LastOf(*splits) <= 0) return Status();
    }
    switch (input.form) {
      case Form::kDense: {
        const int64_t expected = rows * plan_.shapes()[input.r].width;
        if (array.size == expected) return Status();
        return Invalid("'", input.name, "' must have ", expected, " numbers for ", rows,
                       " rows, got ", array.size);
      }
      case Form::kStrings:
        if (array.size != rows * input.num_strings()) {
          return Invalid("'", input.name, "' must have ", rows * input.num_strings(), " strings, ",
                         input.num_strings(), " for each row, got ", array.size);
        }
        return CheckOffsets(input, array);
      case Form::kRowSplits:
        if (array.size != rows + 1) {
          return Invalid("'", input.name, "' must have ", rows + 1, " items, one more than rows, ",
                         "got ", array.size);
        }
        return CheckRowSplits(input, {static_cast<const int64_t*>(array.data), array.size});
      case Form::kBagStrings:
        TWML_RETURN_IF_ERROR(CheckOffsets(input, array));
        [[fallthrough]];
      case Form::kIds:
      case Form::kValues: {
        const RequestArray* const splits = SplitsOf(input, arrays);
        const int64_t last = splits == nullptr ? -1 : LastOf(*splits);
        if (array.size == last) return Status();
        if (last < 0) return Invalid("'", SplitsName(input), "' must not be empty");
        return Invalid(SplitsName(input), "[", splits->size - 1, "] must be the number of entries ",
                       array.size, ", got ", last);
      }
    }
    return Status();
  }

  // The last item of row splits, or -1.
  static int64_t LastOf(const RequestArray& splits) {
    if (splits.data == nullptr || splits.size < 1) return -1;
    return static_cast<const int64_t*>(splits.data)[splits.size - 1];
  }

  static Status CheckOffsets(const ProgramInput& input, const RequestArray& array) {
    if (array.offsets == nullptr) return Invalid("'", input.name, "' must have offsets");
    bool valid = array.offsets[0] >= 0;
    for (int64_t i = 0; i < array.size; ++i) valid &= array.offsets[i] <= array.offsets[i + 1];
    valid &= array.offsets[array.size] <= array.num_bytes;
    if (valid) return Status();
    return Invalid("the offsets of '", input.name, "' must be non-decreasing, from 0 to at most ",
                   array.num_bytes);
  }

  std::string SplitsName(const ProgramInput& input) const {
    for (const ProgramInput& other : plan_.inputs()) {
      if (other.r == input.row_splits) return other.name;
    }
    return "row_splits";
  }

  static Status CheckRowSplits(const ProgramInput& input, Span<const int64_t> splits) {
    // The last item is compared with the number of entries where they are checked.
    const Status valid = twml::CheckRowSplits(splits, splits[splits.size() - 1]);
    if (valid.ok()) return valid;
    return Invalid(input.name, ": ", valid.message());
  }

  // The view of an array of which all rows are the same.
  void BindUser(const ProgramInput& input, const RequestArray& array, StringColumn* strings,
                View* view) const {
    if (input.form == Form::kRowSplits && array.data == nullptr) {
      *view = {kNoEntries, 0};
    } else if (input.form == Form::kStrings || input.form == Form::kBagStrings) {
      *strings = {static_cast<const uint8_t*>(array.data), array.offsets};
      *view = {strings, 0};
    } else {
      *view = {array.data, 0};
    }
  }

  // The views of the rows [first, first + rows).
  void BindBlock(int64_t first, int64_t rows, Workspace* workspace) const {
    std::vector<View>& views = workspace->views;
    if (plan_.key().ranking) {
      for (size_t r = 0; r < views.size(); ++r) {
        if (plan_.variation(static_cast<Register>(r)) == Variation::kConstant) {
          views[r] = {base_->base_views[r].data, 0};
        }
      }
    }
    const auto& inputs = plan_.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ProgramInput& input = inputs[i];
      if (input.r == kNoRegister || plan_.variation(input.r) == Variation::kConstant) continue;
      const RequestArray& array = request_.arrays[i];
      const auto* const data = static_cast<const char*>(array.data);
      View& view = views[input.r];
      switch (input.form) {
        case Form::kDense: {
          const int64_t width = plan_.shapes()[input.r].width;
          view = {data + first * width * SizeOf(input.type), width};
          break;
        }
        case Form::kStrings:
          workspace->strings[i] = {reinterpret_cast<const uint8_t*>(data),
                                   array.offsets + first * input.num_strings()};
          view = {&workspace->strings[i], input.num_strings()};
          break;
        case Form::kRowSplits: {
          auto* const splits = workspace->entries.New<int64_t>(rows + 1);
          const auto* const given = static_cast<const int64_t*>(array.data);
          for (int64_t r = 0; r <= rows; ++r) {
            splits[r] = given == nullptr ? 0 : given[first + r] - given[first];
          }
          view = {splits, 1};
          break;
        }
        case Form::kIds:
        case Form::kValues:
        case Form::kBagStrings: {
          const RequestArray* const splits = SplitsOf(input, request_.arrays);
          const auto* const offsets =
              splits == nullptr ? nullptr : static_cast<const int64_t*>(splits->data);
          const int64_t begin = offsets == nullptr ? 0 : offsets[first];
          if (input.form == Form::kBagStrings) {
            workspace->strings[i] = {reinterpret_cast<const uint8_t*>(data), array.offsets + begin};
            view = {&workspace->strings[i], begin};
          } else {
            const int64_t size = input.form == Form::kIds ? 8 : 4;
            view = {data == nullptr ? nullptr : data + begin * size, begin};
          }
          break;
        }
      }
    }
  }

  const Plan& plan_;
  const Program& program_;
  const Request& request_;
  float* const out_;
  const int64_t width_;
  const Workspace* base_ = nullptr;
};

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

// Calls body(begin, end, workspace) on ranges of [0, total), and returns the first error by
// position. One of the threads uses the workspace `first`.
template <class Body>
Status InParallel(const Plan& plan, int64_t total, int64_t cost, const ParallelFor& parallel_for,
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
    }
  };
  parallel_for(total, cost, range);
  return error.Take();
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
                                     : InParallel(plan, blocks, plan.cost_of_row() * block_rows,
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
      const Register splits =
          inputs[i].form == Form::kRowSplits ? inputs[i].r : inputs[i].row_splits;
      for (size_t j = 0; j < inputs.size(); ++j) {
        if (inputs[j].r == splits && splits != kNoRegister) {
          key.constant[i] = request.user[j].data != nullptr;
        }
      }
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& known : plans_) {
    if (!(known->key() == key)) continue;
    *owner = known;
    *plan = known.get();
    return Status();
  }
  std::unique_ptr<const Plan> made;
  TWML_RETURN_IF_ERROR(Plan::Make(program_, std::move(key), &made));
  *owner = std::move(made);
  *plan = owner->get();
  if (plans_.size() >= kMaxPlans) plans_.erase(plans_.begin());
  plans_.push_back(*owner);
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
  Execution execution(*plan, request, out);
  TWML_RETURN_IF_ERROR(execution.Check());
  if (request.rows == 0) return Status();
  const BorrowedWorkspace first(*plan);
  if (reads_files()) {
    return PredictFromFiles(*plan, &execution, first.get(), request.rows, parallel_for, unreadable);
  }
  TWML_RETURN_IF_ERROR(execution.RunOnce(first.get()));
  if (request.rows <= plan->block_rows()) {
    return execution.RunRows(0, request.rows, first.get());
  }
  return InParallel(*plan, request.rows, plan->cost_of_row(), parallel_for, first.get(),
                    [&](int64_t begin, int64_t end, Workspace* workspace) {
                      return execution.RunRows(begin, end, workspace);
                    });
}

}  // namespace twml::scorer
