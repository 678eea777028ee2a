#include "cc/core/scorer/plan.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "cc/core/thread_number.h"

namespace twml::scorer {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kMaxBlockRows = 32;
constexpr int64_t kBlockBytes = 1 << 17;  // of the dense registers, which stay in a near cache

int64_t RoundUp(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

char* NewLines(int64_t bytes) {
  void* const memory =
      std::aligned_alloc(static_cast<size_t>(kLine), static_cast<size_t>(bytes + kLine));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<char*>(memory);
}

// Assigns offsets to blocks of memory, and reuses the smallest freed block that is large enough.
class Layout {
 public:
  int64_t Place(int64_t bytes) {
    const auto found = free_.lower_bound(bytes);
    if (found == free_.end()) return std::exchange(bytes_, bytes_ + bytes);
    const auto [size, offset] = *found;
    free_.erase(found);
    if (size > bytes) Free(offset + bytes, size - bytes);
    return offset;
  }
  void Free(int64_t offset, int64_t bytes) { free_.emplace(bytes, offset); }
  int64_t bytes() const { return bytes_; }

 private:
  std::multimap<int64_t, int64_t> free_;  // sizes and offsets
  int64_t bytes_ = 0;
};

}  // namespace

void Workspace::Free::operator()(char* memory) const { std::free(memory); }

Workspace::Workspace(const Plan& plan)
    : views(plan.shapes().size()),
      strings(plan.inputs().size()),
      limits(plan.shapes().size()),
      base_views(plan.shapes().size()),
      base_strings(plan.inputs().size()),
      dense_(NewLines(plan.dense_bytes())),
      base_dense_(NewLines(plan.base_bytes())) {
  for (size_t r = 0; r < views.size(); ++r) {
    if (plan.offsets()[r] >= 0) {
      views[r] = {dense_.get() + plan.offsets()[r], plan.shapes()[r].width};
    }
    if (plan.base_offsets()[r] >= 0)
      base_views[r] = {base_dense_.get() + plan.base_offsets()[r], 0};
  }
}

Plan::Plan(const Program& program, PlanKey key)
    : program_(program),
      key_(std::move(key)),
      shapes_(program.registers.size()),
      variations_(program.registers.size(), Variation::kVarying),
      offsets_(program.registers.size(), -1),
      base_offsets_(program.registers.size(), -1) {}

Plan::~Plan() {
  for (auto& slot : pool_) delete slot.workspace.load();
}

Status Plan::Make(const Program& program, PlanKey key, std::unique_ptr<const Plan>* out) {
  std::unique_ptr<Plan> plan(new Plan(program, std::move(key)));
  Shapes shapes(program.registers);
  const auto& inputs = plan->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool shaped = inputs[i].form == Form::kDense || inputs[i].form == Form::kStrings;
    if (inputs[i].r == kNoRegister || !shaped) continue;
    TWML_RETURN_IF_ERROR(shapes.Set(inputs[i].r, plan->key_.dims[i]));
  }
  std::vector<const Step*> steps;
  if (plan->key_.raw) {
    for (const auto& step : program.raw_steps) steps.push_back(step.get());
  }
  for (const auto& step : program.steps) steps.push_back(step.get());
  for (const Step* step : steps) {
    if (const Status shaped = step->Shape(&shapes); !shaped.ok()) {
      return Invalid(step->name, ": ", shaped.message());
    }
    plan->cost_of_row_ += step->CostOfRow(shapes);
  }
  plan->shapes_ = shapes.Take();
  TWML_RETURN_IF_ERROR(plan->CheckOutputs());
  TWML_RETURN_IF_ERROR(plan->FindVariations(steps));
  TWML_RETURN_IF_ERROR(plan->FindCollected(steps));
  plan->PlaceRegisters();
  plan->PlaceBases();
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  if (const int64_t bytes = plan->dense_bytes_ + plan->base_bytes_; bytes > kMaxBytes) {
    return Invalid("the steps need ", bytes, " bytes for a row, more than ", kMaxBytes);
  }
  *out = std::move(plan);
  return Status();
}

Status Plan::CheckOutputs() const {
  if (program_.outputs.empty()) return Status();
  const ProgramOutput& last = program_.outputs.back();
  const int64_t width = shapes_[program_.output].width;
  if (last.first + last.width == width) return Status();
  return Invalid("the output has ", width, " numbers for each row, \"outputs\" has ",
                 last.first + last.width);
}

Status Plan::FindVariations(const std::vector<const Step*>& steps) {
  if (!key_.ranking) {
    each_ = steps;
    return Status();
  }
  // A sparse batch is split if all steps that read it can be computed in parts.
  std::vector<uint8_t> whole(shapes_.size());  // row splits of batches that are not split
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    bool refused = (*step)->split_entries() == SplitEntries::kRefused;
    for (const Register r : (*step)->out) {
      if (r == kNoRegister) continue;
      const RegisterInfo& info = program_.registers[r];
      if (info.form == Form::kRowSplits) refused |= whole[r] != 0;
      if (info.row_splits != kNoRegister) refused |= whole[info.row_splits] != 0;
    }
    for (const Register r : (*step)->in) {
      if (r == kNoRegister || !refused) continue;
      const RegisterInfo& info = program_.registers[r];
      if (info.form == Form::kRowSplits) whole[r] = 1;
      if (info.row_splits != kNoRegister) whole[info.row_splits] = 1;
    }
  }
  for (size_t i = 0; i < inputs().size(); ++i) {
    const ProgramInput& input = inputs()[i];
    if (input.r == kNoRegister) continue;
    const Register splits = input.form == Form::kRowSplits ? input.r : input.row_splits;
    if (splits != kNoRegister && !whole[splits]) {
      variations_[input.r] = Variation::kSplit;
    } else if (key_.constant[i]) {
      variations_[input.r] = Variation::kConstant;
    }
  }
  for (const Step* step : steps) {
    bool split = false, constant = true;
    for (const Register r : step->in) {
      if (r == kNoRegister) continue;
      split |= variations_[r] == Variation::kSplit;
      constant &= variations_[r] == Variation::kConstant;
    }
    if (split || constant) once_.push_back(step);
    if (split || !constant) each_.push_back(step);
    const bool sums = step->split_entries() == SplitEntries::kSums;
    for (const Register r : step->out) {
      if (r == kNoRegister) continue;
      variations_[r] = split && !sums ? Variation::kSplit
                       : constant     ? Variation::kConstant
                                      : Variation::kVarying;
    }
  }
  return Status();
}

Status Plan::FindCollected(const std::vector<const Step*>& steps) {
  std::vector<uint8_t> needed(shapes_.size());
  const auto need = [&](Register r) {
    if (r == kNoRegister) return;
    needed[r] = 1;
    if (program_.registers[r].row_splits != kNoRegister) {
      needed[program_.registers[r].row_splits] = 1;
    }
  };
  std::set<const Step*> collected;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto& outputs = (*step)->out;
    const bool read = std::any_of(outputs.begin(), outputs.end(),
                                  [&](Register r) { return r != kNoRegister && needed[r] != 0; });
    const bool reads_files = (*step)->reads_files();
    if (read && reads_files) {
      return Invalid((*step)->name, " reads a table in a file, and ids of another table in a file ",
                     "depend on it; load the model with its tables in memory");
    }
    if (!read && !reads_files) continue;
    collected.insert(*step);
    for (const Register r : (*step)->in) need(r);
  }
  const auto keep = [&](const std::vector<const Step*>& all, std::vector<const Step*>* kept) {
    for (const Step* step : all) {
      if (collected.count(step) > 0) kept->push_back(step);
    }
  };
  keep(once_, &collect_once_);
  keep(each_, &collect_each_);
  return Status();
}

// The dense registers of a block. A register gives its memory back after the last step that reads
// it.
void Plan::PlaceRegisters() {
  int64_t row_bytes = 1;
  std::vector<size_t> last(shapes_.size(), 0);
  for (size_t i = 0; i < each_.size(); ++i) {
    for (const Register r : each_[i]->in) {
      if (r != kNoRegister) last[r] = i;
    }
    for (const Register r : each_[i]->out) {
      if (r == kNoRegister) continue;
      last[r] = std::max(last[r], i);
      if (program_.registers[r].form == Form::kDense) {
        row_bytes += shapes_[r].width * SizeOf(program_.registers[r].type);
      }
    }
  }
  last[program_.output] = each_.size();
  block_rows_ = std::clamp<int64_t>(kBlockBytes / row_bytes, 1, kMaxBlockRows);
  const auto bytes_of = [&](Register r) {
    return RoundUp(block_rows_ * shapes_[r].width * SizeOf(program_.registers[r].type) + 1);
  };
  std::vector<std::vector<Register>> ends(each_.size() + 1);  // of each step: see `last`
  for (size_t r = 0; r < shapes_.size(); ++r) ends[last[r]].push_back(static_cast<Register>(r));
  Layout layout;
  for (size_t i = 0; i < each_.size(); ++i) {
    for (const Register r : each_[i]->out) {
      if (r == kNoRegister || program_.registers[r].form != Form::kDense) continue;
      offsets_[r] = layout.Place(bytes_of(r));
    }
    for (const Register r : ends[i]) {
      if (offsets_[r] >= 0) layout.Free(offsets_[r], bytes_of(r));
    }
  }
  dense_bytes_ = layout.bytes();
}

void Plan::PlaceBases() {
  for (const Step* step : once_) {
    for (const Register r : step->out) {
      if (r == kNoRegister || program_.registers[r].form != Form::kDense) continue;
      base_offsets_[r] = base_bytes_;
      base_bytes_ += RoundUp(shapes_[r].width * SizeOf(program_.registers[r].type) + 1);
    }
  }
}

std::unique_ptr<Workspace> Plan::TakeWorkspace() const {
  const uint32_t first = ThreadNumber();
  for (uint32_t i = 0; i < kPool; ++i) {
    auto& slot = pool_[(first + i) % kPool].workspace;
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    if (Workspace* const found = slot.exchange(nullptr, std::memory_order_acquire)) {
      return std::unique_ptr<Workspace>(found);
    }
  }
  return std::make_unique<Workspace>(*this);
}

void Plan::ReturnWorkspace(std::unique_ptr<Workspace> workspace) const {
  constexpr int64_t kKeptBytes = int64_t{1} << 26;
  workspace->entries.Trim(kKeptBytes);
  workspace->base_entries.Trim(kKeptBytes);
  if (workspace->fetched.bytes() > kKeptBytes) workspace->fetched = FetchedRows();
  const uint32_t first = ThreadNumber();
  for (uint32_t i = 0; i < kPool; ++i) {
    auto& slot = pool_[(first + i) % kPool].workspace;
    Workspace* expected = nullptr;
    if (slot.compare_exchange_strong(expected, workspace.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
      static_cast<void>(workspace.release());
      return;
    }
  }
}

}  // namespace twml::scorer
