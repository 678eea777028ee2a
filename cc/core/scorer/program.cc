#include "cc/core/scorer/program.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "cc/core/crc32.h"
#include "cc/core/scorer/array_file.h"
#include "cc/core/scorer/json.h"
#include "cc/core/scorer/raw_columns.h"
#include "cc/core/scorer/step_reader.h"

namespace twml::scorer {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kFormatWithBase = 2;  // some arrays are the changes to arrays of another folder
constexpr int64_t kFormatWithOutputs = 3;  // several outputs, and possibly such arrays
constexpr int64_t kMaxBytes = 1 << 26;
constexpr const char* kFile = "scorer.json";

MakeStep FindStep(const std::string& op) {
  for (const auto find :
       {FindArrayStep, FindCalibrationStep, FindCategoryStep, FindDenseStep, FindFieldStep,
        FindInteractionStep, FindSparseStep, FindStringStep, FindVectorStep}) {
    if (const MakeStep make = find(op)) return make;
  }
  return nullptr;
}

// A program whose first member is "crc32" has the checksum of all that follows its comma.
Status CheckText(const std::string& path, const std::string& text) {
  constexpr std::string_view kStart = "{\"crc32\": ";
  if (std::string_view(text).substr(0, kStart.size()) != kStart) return Status();
  uint64_t expected = 0;
  size_t at = kStart.size();
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && expected <= UINT32_MAX; ++at) {
    expected = expected * 10 + static_cast<uint64_t>(text[at] - '0');
  }
  const bool complete = at < text.size() && text[at] == ',';
  if (complete && Crc32(text.data() + at + 1, text.size() - at - 1) == expected) return Status();
  return Invalid(path,
                 " is damaged, or was edited, which needs the member \"crc32\" to be removed: its "
                 "checksum differs");
}

Status ReadJson(const std::string& path, Json* out) {
  std::string text;
  TWML_RETURN_IF_ERROR(ReadFile(path, kMaxBytes, &text));
  TWML_RETURN_IF_ERROR(CheckText(path, text));
  const Status parsed = Json::Parse(text, out);
  return parsed.ok() ? parsed : Invalid(path, ": ", parsed.message());
}

class ProgramReader {
 public:
  ProgramReader(const std::string& folder, const Json& json, const TableOptions& options,
                Program* program)
      : json_(json), program_(*program) {
    program_.tables = std::make_unique<TableFiles>(options);
    folders_.folder = folder;
    folders_.checksums = json.Find("checksums");
    folders_.tables = program_.tables.get();
    if (options.storage == TableStorage::kMemory) folders_.place = ArrayPlace::kMemory;
  }

  Status Read() {
    TWML_RETURN_IF_ERROR(ReadBase());
    TWML_RETURN_IF_ERROR(ReadInputs());
    if (const Json* const raw = json_.Find("raw")) {
      TWML_RETURN_IF_ERROR(ReadRawColumns(*raw, &registers_, &columns_, &program_.raw_steps));
    }
    TWML_RETURN_IF_ERROR(ReadSteps());
    program_.tables->Finish();
    const Json* const output = json_.Find("output");
    if (output == nullptr || !output->is(Json::Kind::kString)) {
      return Invalid("\"output\" must be the name of an array");
    }
    program_.output = registers_.Find(output->string());
    if (program_.output == kNoRegister || registers_.info(program_.output).form != Form::kDense) {
      return Invalid("\"output\" must be a dense array, got '", output->string(), "'");
    }
    if (const Json* const name = json_.Find("output_name")) {
      if (!name->is(Json::Kind::kString)) return Invalid("\"output_name\" must be a string");
      program_.output_name = name->string();
    }
    TWML_RETURN_IF_ERROR(ReadOutputs());
    registers_.Want(program_.output, Type::kFloat);
    TWML_RETURN_IF_ERROR(registers_.Resolve());
    Convert();
    FuseActivations();
    program_.registers = registers_.infos();
    FinishInputs();
    TWML_RETURN_IF_ERROR(CheckEntries(program_.features, {}));
    return program_.columns.empty() ? Status() : CheckEntries(program_.columns, program_.raw_steps);
  }

 private:
  // Finds the folder of which this one has the changes, and checks that it is the one meant.
  Status ReadBase() {
    const Json* const base = json_.Find("base");
    if (base == nullptr) return Status();
    const Json* const name = base->Find("folder");
    const Json* const fingerprint = base->Find("fingerprint");
    if (name == nullptr || !IsFileName(*name) || fingerprint == nullptr ||
        !fingerprint->is(Json::Kind::kString)) {
      return Invalid("\"base\" must have the name of a folder beside this one and a fingerprint");
    }
    folders_.base = folders_.folder + "/../" + name->string();
    TWML_RETURN_IF_ERROR(ReadJson(folders_.base + "/" + kFile, &base_json_));
    folders_.base_checksums = base_json_.Find("checksums");
    const Json* const found = base_json_.Find("fingerprint");
    if (found == nullptr || !found->is(Json::Kind::kString) ||
        found->string() != fingerprint->string()) {
      return Invalid("the base ", folders_.base, " has another fingerprint than \"base\" says");
    }
    return CheckLayout();
  }

  // Rows of tables have the same meaning in the base if what leads to them is the same. Earlier
  // exports do not say.
  Status CheckLayout() const {
    const Json* const mine = json_.Find("layout");
    const Json* const its = base_json_.Find("layout");
    if (mine == nullptr || its == nullptr) return Status();
    for (const auto& [part, digest] : mine->members()) {
      const Json* const other = its->Find(part);
      if (other != nullptr && other->string() == digest.string()) continue;
      return Invalid("the base ", folders_.base, " has another layout: its ", part, " differs");
    }
    return Status();
  }

  Status ReadInputs() {
    constexpr std::pair<const char*, Form> kRoles[] = {
        {"ids", Form::kIds},     {"values", Form::kValues},   {"row_splits", Form::kRowSplits},
        {"dense", Form::kDense}, {"strings", Form::kStrings}, {"bag", Form::kBagStrings}};
    const Json* const inputs = json_.Find("inputs");
    if (inputs == nullptr || !inputs->is(Json::Kind::kObject)) {
      return Invalid("\"inputs\" must be an object");
    }
    for (const auto& [name, role] : inputs->members()) {
      const auto* const found =
          std::find_if(std::begin(kRoles), std::end(kRoles),
                       [&text = role.string()](const auto& known) { return text == known.first; });
      if (found == std::end(kRoles)) {
        return Invalid("the role of the input '", name,
                       "' must be ids, values, row_splits, dense, strings or bag");
      }
      ProgramInput input;
      input.name = name;
      input.form = found->second;
      TWML_RETURN_IF_ERROR(registers_.Add(name, input.form, &input.r));
      if (input.form == Form::kDense || input.form == Form::kStrings) {
        TWML_RETURN_IF_ERROR(ReadShape(&input));
      }
      program_.features.push_back(std::move(input));
    }
    return Status();
  }

  // The shapes of dense inputs, which exports before version 0.2 do not have.
  Status ReadShape(ProgramInput* input) const {
    const Json* const shapes = json_.Find("shapes");
    const Json* const shape = shapes == nullptr ? nullptr : shapes->Find(input->name);
    input->shape_known = shape != nullptr;
    if (shape == nullptr && input->form == Form::kStrings) {
      return Invalid("the shape of the strings '", input->name, "' must be known");
    }
    if (shape == nullptr) return Status();
    int64_t width;
    if (ReadDims(*shape, &input->dims, &width)) return Status();
    return Invalid("the shape of the input '", input->name, "' must be a list of sizes");
  }

  // Reads the sizes of a row, and multiplies them.
  static bool ReadDims(const Json& shape, std::vector<int64_t>* dims, int64_t* width) {
    bool valid = shape.is(Json::Kind::kArray) && shape.items().size() <= 8;
    for (const Json& dim : shape.items()) {
      valid = valid && dim.is(Json::Kind::kInteger);
      dims->push_back(dim.integer());
    }
    return valid && WidthOf(*dims, width);
  }

  // The names and the shapes of several outputs, whose numbers are side by side.
  Status ReadOutputs() {
    const Json* const outputs = json_.Find("outputs");
    if (outputs == nullptr) return Status();
    if (!outputs->is(Json::Kind::kArray) || outputs->items().empty()) {
      return Invalid("\"outputs\" must be an array of outputs");
    }
    int64_t first = 0;
    std::set<std::string> names;
    for (const Json& item : outputs->items()) {
      const Json *const name = item.Find("name"), *const shape = item.Find("shape");
      ProgramOutput output;
      output.first = first;
      if (name == nullptr || !name->is(Json::Kind::kString) || shape == nullptr ||
          !ReadDims(*shape, &output.dims, &output.width)) {
        return Invalid("\"outputs\" must have names and shapes");
      }
      output.name = name->string();
      first += output.width;
      if (!names.insert(output.name).second) {
        return Invalid("\"outputs\" has '", output.name, "' twice");
      }
      program_.outputs.push_back(std::move(output));
    }
    return Status();
  }

  Status ReadSteps() {
    const Json* const steps = json_.Find("steps");
    if (steps == nullptr || !steps->is(Json::Kind::kArray)) {
      return Invalid("\"steps\" must be an array");
    }
    for (const Json& item : steps->items()) {
      StepReader reader(item, program_.steps.size(), folders_, &registers_, &typed_);
      TWML_RETURN_IF_ERROR(reader.status());
      const MakeStep make = FindStep(reader.op());
      if (make == nullptr) {
        return Invalid(reader.name(), " is an operation that this version does not know");
      }
      std::unique_ptr<Step> step = make(reader);
      TWML_RETURN_IF_ERROR(reader.status());
      reader.Finish(step.get());
      program_.steps.push_back(std::move(step));
    }
    return Status();
  }

  // Inserts conversions of inputs that have another type than a step reads.
  void Convert() {
    std::vector<std::vector<std::unique_ptr<Step>>> before(program_.steps.size() + 1);
    const auto convert = [&](size_t step, Register* r, Type type) {
      const RegisterInfo info = registers_.info(*r);
      if (info.type == type) return;
      const Register made = registers_.AddHidden(info.name, Form::kDense);
      registers_.SetType(made, type);
      before[step].push_back(MakeCast(*r, info.type, made, type));
      *r = made;
    };
    for (const TypedInput& input : typed_) {
      Step& step = *program_.steps[input.step];
      convert(input.step, &step.in[input.index], input.type);
    }
    convert(program_.steps.size(), &program_.output, Type::kFloat);
    std::vector<std::unique_ptr<Step>> steps;
    for (size_t i = 0; i <= program_.steps.size(); ++i) {
      for (auto& step : before[i]) steps.push_back(std::move(step));
      if (i < program_.steps.size()) steps.push_back(std::move(program_.steps[i]));
    }
    program_.steps = std::move(steps);
  }

  // An activation becomes part of the step before it, if nothing else reads what that step writes.
  void FuseActivations() {
    std::vector<int> readers(registers_.infos().size());
    std::vector<Step*> writers(registers_.infos().size());
    for (const auto& step : program_.steps) {
      for (const Register r : step->in) {
        if (r != kNoRegister) ++readers[r];
      }
    }
    ++readers[program_.output];
    std::vector<std::unique_ptr<Step>> steps;
    for (auto& step : program_.steps) {
      Activation activation;
      if (ActivationOf(*step, &activation)) {
        Step* const writer = writers[step->in[0]];
        if (writer != nullptr && readers[step->in[0]] == 1 && writer->Fuse(activation)) {
          writer->out[0] = step->out[0];
          writers[step->out[0]] = writer;
          continue;
        }
      }
      for (const Register r : step->out) {
        if (r != kNoRegister) writers[r] = step.get();
      }
      steps.push_back(std::move(step));
    }
    program_.steps = std::move(steps);
  }

  void FinishInputs() {
    for (const RawColumn& column : columns_) {
      ProgramInput input;
      input.name = column.name;
      input.form = column.form;
      input.r = column.r;
      input.is_time = column.is_time;
      input.separator = column.separator;
      program_.columns.push_back(std::move(input));
    }
    for (auto* inputs : {&program_.features, &program_.columns}) {
      std::map<Register, size_t> position;
      for (size_t i = 0; i < inputs->size(); ++i) position.emplace((*inputs)[i].r, i);
      for (ProgramInput& input : *inputs) {
        if (input.r == kNoRegister) continue;
        input.row_splits = program_.registers[input.r].row_splits;
        input.type = program_.registers[input.r].type;
        const auto splits = position.find(input.row_splits);
        if (input.row_splits != kNoRegister && splits != position.end()) {
          input.splits_input = static_cast<int64_t>(splits->second);
        }
      }
    }
  }

  // Checks that all features are there, and that entries have as many items as their row splits
  // say: both come from the request, or from the same step.
  Status CheckEntries(const std::vector<ProgramInput>& inputs,
                      const std::vector<std::unique_ptr<Step>>& raw_steps) const {
    constexpr int kNowhere = 0, kRequest = 1;
    std::vector<int> origins(program_.registers.size(), kNowhere);
    for (const ProgramInput& input : inputs) {
      if (input.r != kNoRegister) origins[input.r] = kRequest;
    }
    for (size_t i = 0; i < raw_steps.size(); ++i) {
      for (const Register r : raw_steps[i]->out) {
        if (r != kNoRegister) origins[r] = kRequest + 1 + static_cast<int>(i);
      }
    }
    for (const ProgramInput& feature : program_.features) {
      if (origins[feature.r] == kNowhere) {
        return Invalid("the input '", feature.name, "' is no feature of the columns");
      }
    }
    for (size_t r = 0; r < origins.size(); ++r) {
      const RegisterInfo& info = program_.registers[r];
      if (origins[r] == kNowhere || info.row_splits == kNoRegister) continue;
      if (origins[info.row_splits] != origins[r]) {
        return Invalid("'", info.name, "' has the row splits '",
                       program_.registers[info.row_splits].name, "', which are not its own");
      }
    }
    return Status();
  }

  ArrayFolders folders_;
  Json base_json_;
  const Json& json_;
  Program& program_;
  RegisterTable registers_;
  std::vector<TypedInput> typed_;
  std::vector<RawColumn> columns_;
};

Status Check(const std::string& folder, const Json& json) {
  if (!json.is(Json::Kind::kObject)) return Invalid("must be an object");
  const Json* const format = json.Find("format");
  if (format == nullptr || !format->is(Json::Kind::kInteger)) {
    return Invalid("must have the number of a format");
  }
  static_assert(kFormat < kFormatWithBase && kFormatWithBase < kFormatWithOutputs);
  if (format->integer() >= kFormat && format->integer() <= kFormatWithOutputs) return Status();
  return Invalid(folder, " has the format ", format->integer(), ", this version reads ", kFormat,
                 " to ", kFormatWithOutputs);
}

}  // namespace

Status Program::Read(const std::string& folder, const TableOptions& options, Program* out) {
  TWML_RETURN_IF_ERROR(options.Check());
  const std::string path = folder + "/" + kFile;
  Json json;
  TWML_RETURN_IF_ERROR(ReadJson(path, &json));
  Status status = Check(folder, json);
  if (status.ok()) status = ProgramReader(folder, json, options, out).Read();
  if (status.ok()) return status;
  return Invalid(path, ": ", status.message());
}

}  // namespace twml::scorer
