#include "cc/serving/served_model.h"

#include <utility>
#include <vector>

namespace twml::serving {
namespace {

using scorer::ProgramInput;
using scorer::ProgramOutput;
using scorer::Scorer;

Status CheckSameInputs(const char* kind, const std::vector<ProgramInput>& old_inputs,
                       const std::vector<ProgramInput>& new_inputs) {
  bool same = old_inputs.size() == new_inputs.size();
  for (size_t i = 0; same && i < old_inputs.size(); ++i) {
    const ProgramInput &a = old_inputs[i], &b = new_inputs[i];
    same = a.name == b.name && a.form == b.form && a.type == b.type && a.dims == b.dims;
    if (!same) {
      return Invalid("the new model must have the ", kind, " of the old one: '", a.name,
                     "' became '", b.name, "' or has another form");
    }
  }
  if (same) return Status();
  return Invalid("the new model must have the ", old_inputs.size(), " ", kind,
                 " of the old one, got ", new_inputs.size());
}

Status CheckSameOutputs(const std::vector<ProgramOutput>& old_outputs,
                        const std::vector<ProgramOutput>& new_outputs) {
  bool same = old_outputs.size() == new_outputs.size();
  for (size_t i = 0; same && i < old_outputs.size(); ++i) {
    same = old_outputs[i].name == new_outputs[i].name && old_outputs[i].dims == new_outputs[i].dims;
  }
  return same ? Status() : Invalid("the new model must have the outputs of the old one");
}

}  // namespace

Status ServedModel::Load(const std::string& folder, const scorer::TableOptions& options,
                         std::unique_ptr<ServedModel>* out) {
  std::shared_ptr<const Scorer> loaded;
  TWML_RETURN_IF_ERROR(Scorer::Load(folder, options, &loaded));
  out->reset(new ServedModel(options));
  (*out)->Replace(loaded);
  return Status();
}

Status ServedModel::Reload(const std::string& folder) {
  std::shared_ptr<const Scorer> loaded;
  TWML_RETURN_IF_ERROR(Scorer::Load(folder, options_, &loaded));
  std::lock_guard<std::mutex> lock(reload_);
  const std::shared_ptr<const Scorer> old = Get();
  TWML_RETURN_IF_ERROR(CheckSameInputs("inputs", old->features(), loaded->features()));
  TWML_RETURN_IF_ERROR(CheckSameInputs("columns", old->columns(), loaded->columns()));
  if (old->output_width() != loaded->output_width()) {
    return Invalid("the output of the new model must have ", old->output_width(),
                   " numbers for each row, as that of the old one, got ", loaded->output_width());
  }
  TWML_RETURN_IF_ERROR(CheckSameOutputs(old->outputs(), loaded->outputs()));
  Replace(loaded);
  return Status();
}

void ServedModel::Replace(const std::shared_ptr<const Scorer>& scorer) {
  // All memory is allocated before the first slot changes, so a failure changes none.
  std::shared_ptr<const Scorer> made[kSlots];
  for (auto& pointer : made) {
    // Has a counter of its own, and holds one of the counter of `scorer`.
    auto held = std::make_shared<std::shared_ptr<const Scorer>>(scorer);
    pointer = std::shared_ptr<const Scorer>(held, held->get());
  }
  for (uint32_t i = 0; i < kSlots; ++i) {
    std::lock_guard<std::mutex> lock(slots_[i].mu);
    slots_[i].scorer.swap(made[i]);
  }
  // The references to the old version in `made` end here. The last reference to it frees it.
}

}  // namespace twml::serving
