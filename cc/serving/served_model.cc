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
  out->reset(new ServedModel(options, loaded));
  (*out)->slots();
  return Status();
}

ServedModel::ServedModel(const scorer::TableOptions& options, const Current& loaded)
    : options_(options), current_(new Current(loaded)) {}

ServedModel::~ServedModel() { delete current_.load(); }

Status ServedModel::EndReload(int64_t number, const std::shared_ptr<const Scorer>& loaded) {
  slots();  // before the lock, which MakeSlots takes
  std::lock_guard<std::mutex> lock(mu_.Get());
  const std::shared_ptr<const Scorer> old = *current_.load();
  TWML_RETURN_IF_ERROR(CheckSameInputs("inputs", old->features(), loaded->features()));
  TWML_RETURN_IF_ERROR(CheckSameInputs("columns", old->columns(), loaded->columns()));
  if (old->output_width() != loaded->output_width()) {
    return Invalid("the output of the new model must have ", old->output_width(),
                   " numbers for each row, as that of the old one, got ", loaded->output_width());
  }
  TWML_RETURN_IF_ERROR(CheckSameOutputs(old->outputs(), loaded->outputs()));
  if (number < installed_) return Status();  // replaced already, by a call that began later
  Replace(loaded);
  installed_ = number;
  return Status();
}

// A reference with a counter of its own, which holds one of the counter of `scorer`.
ServedModel::Current ServedModel::OwnReference(const Current& scorer) {
  auto held = std::make_shared<Current>(scorer);
  return Current(held, held->get());
}

std::unique_ptr<ServedModel::Slots> ServedModel::MakeSlots() const {
  auto made = std::make_unique<Slots>();
  std::lock_guard<std::mutex> lock(mu_.Get());
  for (Slot& slot : made->slots) slot.scorer = OwnReference(*current_.load());
  return made;
}

void ServedModel::Replace(const Current& scorer) {
  // All memory is allocated before the first slot changes, so a failure changes none.
  Current made[kSlots];
  for (Current& reference : made) reference = OwnReference(scorer);
  const std::unique_ptr<const Current> old(current_.exchange(new Current(scorer)));
  for (uint32_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots()[i];
    std::lock_guard<std::mutex> lock(slot.mu);
    slot.scorer.swap(made[i]);
  }
  // The references to the old version in `made` end here. The last reference to it frees it.
}

}  // namespace twml::serving
