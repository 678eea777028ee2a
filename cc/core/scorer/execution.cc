#include "cc/core/scorer/execution.h"

#include <algorithm>

namespace twml::scorer {
namespace {

const int64_t kNoEntries[] = {0, 0};  // row splits of a row without entries

}  // namespace

// Calls body(step, frame) for steps on what is the same for all rows.
template <class Body>
Status Execution::ForUser(Workspace* workspace, const std::vector<const Step*>& steps,
                          const Body& body) {
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

Status Execution::RunOnce(Workspace* workspace, const FetchedRows* fetched) {
  return ForUser(workspace, plan_.once(), [&](const Step& step, Frame& frame) {
    frame.fetched = fetched;
    // A step whose inputs are the same for all rows is complete.
    frame.is_base = std::any_of(step.in.begin(), step.in.end(), [&](Register r) {
      return r != kNoRegister && plan_.variation(r) == Variation::kSplit;
    });
    return step.Run(frame);
  });
}

Status Execution::RunRows(int64_t begin, int64_t end, Workspace* workspace,
                          const FetchedRows* fetched, int64_t block) const {
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

Status Execution::Collect(int64_t begin, int64_t end, Workspace* workspace) {
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

Frame Execution::BeginBlock(int64_t first, int64_t rows, Workspace* workspace) const {
  workspace->entries.Reset();
  BindBlock(first, rows, workspace);
  std::fill(workspace->limits.begin(), workspace->limits.end(), 0);
  Frame frame = MakeFrame(rows, workspace->views.data(), &workspace->entries, workspace);
  if (plan_.key().ranking) frame.bases = base_->base_views.data();
  return frame;
}

Frame Execution::MakeFrame(int64_t rows, View* views, EntryMemory* memory,
                           Workspace* workspace) const {
  Frame frame;
  frame.rows = rows;
  frame.views = views;
  frame.shapes = plan_.shapes().data();
  frame.registers = program_.registers.data();
  frame.memory = memory;
  frame.limits = workspace->limits.data();
  return frame;
}

// The view of an array of which all rows are the same.
void Execution::BindUser(const ProgramInput& input, const RequestArray& array,
                         StringColumn* strings, View* view) const {
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
void Execution::BindBlock(int64_t first, int64_t rows, Workspace* workspace) const {
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

}  // namespace twml::scorer
