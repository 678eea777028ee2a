#include "cc/core/scorer/step_reader.h"

#include <algorithm>
#include <cmath>

namespace twml::scorer {
namespace {

const char* NameOf(Form form) {
  constexpr const char* kNames[] = {"a dense array", "strings",    "ids",
                                    "values",        "row splits", "strings of a bag"};
  return kNames[static_cast<int>(form)];
}

}  // namespace

bool IsFileName(const Json& name) {
  if (!name.is(Json::Kind::kString)) return false;
  const std::string& text = name.string();
  return !text.empty() && text != "." && text != ".." && text.find('/') == std::string::npos &&
         text.find('\0') == std::string::npos;
}

Status RegisterTable::Add(const std::string& name, Form form, Register* out) {
  if (Find(name) != kNoRegister) return Invalid("'", name, "' is written twice");
  *out = AddHidden(name, form);
  by_name_.emplace(name, *out);
  return Status();
}

Register RegisterTable::AddHidden(const std::string& name, Form form) {
  const auto r = static_cast<Register>(infos_.size());
  infos_.push_back({name, form, Type::kFloat, kNoRegister});
  entries_.push_back(r);
  types_.push_back(r);
  return r;
}

Register RegisterTable::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? kNoRegister : found->second;
}

Register RegisterTable::Root(std::vector<Register>* parents, Register r) {
  while ((*parents)[r] != r) {
    (*parents)[r] = (*parents)[(*parents)[r]];
    r = (*parents)[r];
  }
  return r;
}

void RegisterTable::Join(std::vector<Register>* parents, Register a, Register b) {
  if (a == kNoRegister || b == kNoRegister) return;
  (*parents)[Root(parents, a)] = Root(parents, b);
}

Status RegisterTable::Resolve() {
  TWML_RETURN_IF_ERROR(ResolveTypes());
  return ResolveRowSplits();
}

Status RegisterTable::ResolveTypes() {
  constexpr int kUnknown = -1;
  std::vector<int> types(infos_.size(), kUnknown);
  for (const auto& [r, type] : produced_) {
    int& known = types[Root(&types_, r)];
    if (known != kUnknown && known != static_cast<int>(type)) {
      return Invalid("'", infos_[r].name, "' is joined with an array of another type");
    }
    known = static_cast<int>(type);
  }
  // A dense input is what most specific the steps that read it want: integers, then floats, then
  // bools. Other steps get it converted.
  for (const Type type : {Type::kInteger, Type::kFloat, Type::kBool}) {
    for (const auto& [r, wanted] : wanted_) {
      int& known = types[Root(&types_, r)];
      if (known == kUnknown && wanted == type) known = static_cast<int>(type);
    }
  }
  for (size_t r = 0; r < infos_.size(); ++r) {
    const int type = types[Root(&types_, static_cast<Register>(r))];
    if (type != kUnknown) infos_[r].type = static_cast<Type>(type);
  }
  return Status();
}

Status RegisterTable::ResolveRowSplits() {
  std::vector<Register> splits(infos_.size(), kNoRegister);
  for (size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].form != Form::kRowSplits) continue;
    Register& known = splits[Root(&entries_, static_cast<Register>(i))];
    if (known != kNoRegister) {
      return Invalid("'", infos_[known].name, "' and '", infos_[i].name,
                     "' are row splits of the same entries");
    }
    known = static_cast<Register>(i);
  }
  for (size_t i = 0; i < infos_.size(); ++i) {
    RegisterInfo& info = infos_[i];
    if (info.form != Form::kIds && info.form != Form::kValues && info.form != Form::kBagStrings) {
      continue;
    }
    info.row_splits = splits[Root(&entries_, static_cast<Register>(i))];
    if (info.row_splits == kNoRegister) return Invalid("'", info.name, "' has no row splits");
  }
  return Status();
}

StepReader::StepReader(const Json& step, size_t number, const ArrayFolders& folders,
                       RegisterTable* registers, std::vector<TypedInput>* typed)
    : folders_(folders), number_(number), registers_(registers), typed_(typed) {
  name_ = "step " + std::to_string(number);
  if (!step.is(Json::Kind::kObject)) {
    Fail("must be an object");
    return;
  }
  if (const Json* op = Member(step, "op", Json::Kind::kString)) op_ = op->string();
  name_ += " (" + op_ + ")";
  arrays_ = Member(step, "arrays", Json::Kind::kObject);
  attributes_ = Member(step, "attributes", Json::Kind::kObject);
  for (const bool inputs : {true, false}) {
    const Json* const names = Member(step, inputs ? "in" : "out", Json::Kind::kArray);
    if (names == nullptr) return;
    for (const Json& item : names->items()) {
      if (!item.is(Json::Kind::kString) && !item.is(Json::Kind::kNull)) {
        Fail("must have names of arrays in \"in\" and \"out\"");
        return;
      }
      const std::string* const text = item.is(Json::Kind::kString) ? &item.string() : nullptr;
      (inputs ? in_names_ : out_names_).push_back(text);
    }
  }
  in_.assign(in_names_.size(), kNoRegister);
  out_.assign(out_names_.size(), kNoRegister);
}

void StepReader::Fail(const std::string& problem) {
  if (status_.ok()) status_ = Status::Invalid(name_ + " " + problem);
}

void StepReader::RequireInputs(size_t number) {
  if (num_inputs() == number) return;
  Fail("must have " + std::to_string(number) + " inputs, got " + std::to_string(num_inputs()));
}

void StepReader::RequireOutputs(size_t number) {
  if (num_outputs() == number) return;
  Fail("must have " + std::to_string(number) + " outputs, got " + std::to_string(num_outputs()));
}

Register StepReader::Input(size_t i, Form form) {
  if (!ok()) return kNoRegister;
  if (!has_input(i)) {
    Fail("must have the input " + std::to_string(i));
    return kNoRegister;
  }
  const std::string& name = *in_names_[i];
  const Register r = registers_->Find(name);
  if (r == kNoRegister) {
    Fail("reads '" + name + "', which is no input and no step before it writes");
    return kNoRegister;
  }
  if (registers_->info(r).form != form) {
    Fail("reads '" + name + "', which must be " + NameOf(form) + ", got " +
         NameOf(registers_->info(r).form));
    return kNoRegister;
  }
  return in_[i] = r;
}

Register StepReader::Output(size_t i, Form form) {
  if (!ok()) return kNoRegister;
  if (i >= out_names_.size() || out_names_[i] == nullptr) {
    Fail("must have the output " + std::to_string(i));
    return kNoRegister;
  }
  Register r = kNoRegister;
  if (const Status added = registers_->Add(*out_names_[i], form, &r); !added.ok()) {
    Fail(": " + added.message());
  }
  return out_[i] = r;
}

void StepReader::DenseInput(size_t i, Type type) {
  const Register r = Input(i, Form::kDense);
  if (r == kNoRegister) return;
  registers_->Want(r, type);
  typed_->push_back({number_, i, type});
}

void StepReader::DenseInputOfAnyType(size_t i) { Input(i, Form::kDense); }

void StepReader::IdsInput(size_t i) { Input(i, Form::kIds); }

void StepReader::StringsInput(size_t i) { Input(i, Form::kStrings); }

void StepReader::BagInput(size_t i) {
  const Register strings = Input(i, Form::kBagStrings);
  registers_->JoinEntries(strings, Input(i + 2, Form::kRowSplits));
}

void StepReader::BatchInput(size_t i) {
  const Register ids = Input(i, Form::kIds);
  const Register values = has_input(i + 1) ? Input(i + 1, Form::kValues) : kNoRegister;
  const Register splits = Input(i + 2, Form::kRowSplits);
  registers_->JoinEntries(ids, values);
  registers_->JoinEntries(ids, splits);
}

void StepReader::DenseOutput(size_t i, Type type) {
  if (const Register r = Output(i, Form::kDense); r != kNoRegister) registers_->Produce(r, type);
}

void StepReader::DenseOutputOfInputType(size_t i) {
  const Register r = Output(i, Form::kDense);
  for (size_t k = 0; ok() && k < in_.size(); ++k) registers_->JoinTypes(in_[k], r);
}

void StepReader::EntriesOutput(size_t i, Form form, size_t like) {
  const Register r = Output(i, form);
  if (r != kNoRegister) registers_->JoinEntries(in_[like], r);
}

void StepReader::BatchOutput(size_t i) {
  const Register ids = Output(i, Form::kIds);
  const bool values = i + 1 < out_names_.size() && out_names_[i + 1] != nullptr;
  if (values) registers_->JoinEntries(ids, Output(i + 1, Form::kValues));
  registers_->JoinEntries(ids, Output(i + 2, Form::kRowSplits));
}

const Json* StepReader::Member(const Json& object, const char* name, Json::Kind kind) {
  const Json* const found = object.Find(name);
  if (found == nullptr) {
    Fail(std::string("must have \"") + name + "\"");
    return nullptr;
  }
  const bool number = kind == Json::Kind::kNumber && found->is(Json::Kind::kInteger);
  if (found->is(kind) || number) return found;
  Fail(std::string("must have ") + Json::NameOf(kind) + " as \"" + name + "\", got " +
       Json::NameOf(found->kind()));
  return nullptr;
}

const Json* StepReader::Attribute(const char* name, Json::Kind kind) {
  return ok() ? Member(*attributes_, name, kind) : nullptr;
}

bool StepReader::HasArray(const char* name) const { return ok() && arrays_->Find(name) != nullptr; }

// A file whose size and ends agree with the program.
struct StepReader::CheckedFile {
  static constexpr int64_t kUnknown = -1;
  std::string path;
  int64_t checksum = kUnknown;  // CRC-32 of its items
};

StepReader::CheckedFile StepReader::Find(const Json* file, bool base, const char* name) {
  // A folder cannot make a scorer read files elsewhere.
  if (file == nullptr || !IsFileName(*file)) {
    Fail("must have the name of a file in the folder as \"" + std::string(name) + "\"");
    return {};
  }
  CheckedFile out;
  out.path = (base ? folders_.base : folders_.folder) + "/" + file->string();
  const Json* const all = base ? folders_.base_checksums : folders_.checksums;
  if (all == nullptr) return out;
  const Json* const known = all->Find(file->string());
  bool integers = known != nullptr;
  std::vector<int64_t> items;
  if (integers) items = ToIntegers(*known, &integers);
  if (!integers || (items.size() != 2 && items.size() != 3)) {
    Fail("must have the size and the checksums of " + file->string() + " in \"checksums\"");
    return {};
  }
  for (size_t i = 1; i < items.size(); ++i) {
    if (items[i] >= 0 && items[i] <= UINT32_MAX) continue;
    Fail("must have checksums in [0, 2^32) of " + file->string() + ", got " +
         std::to_string(items[i]));
    return {};
  }
  const Status same = CheckFile(out.path, items[0], static_cast<uint32_t>(items[1]));
  if (!same.ok()) Fail(": " + same.message());
  if (items.size() == 3) out.checksum = items[2];
  return out;
}

// Large arrays that are mapped are not read as a whole, except arrays with changed rows, which are
// copied.
Status StepReader::OpenChecked(const CheckedFile& file, ArrayPlace place, bool even_mapped,
                               ArrayFile* out) {
  TWML_RETURN_IF_ERROR(ArrayFile::Open(file.path, place, out));
  if (file.checksum == CheckedFile::kUnknown || (out->mapped() && !even_mapped)) return Status();
  return out->CheckItems(static_cast<uint32_t>(file.checksum));
}

void StepReader::OpenArray(const char* name, ArrayFile* out) {
  const Json* const entry = arrays_->Find(name);
  if (entry != nullptr && entry->is(Json::Kind::kObject)) {
    return OpenChangedArray(*entry, name, out);
  }
  const Json* const json = Member(*arrays_, name, Json::Kind::kString);
  if (json == nullptr) return;
  const CheckedFile file = Find(json, false, name);
  if (!ok()) return;
  const Status opened = OpenChecked(file, folders_.place, false, out);
  if (!opened.ok()) Fail(": " + opened.message());
}

void StepReader::OpenChangedArray(const Json& entry, const char* name, ArrayFile* out) {
  if (folders_.base.empty()) return Fail("has changed rows, but the program has no \"base\"");
  const CheckedFile file = Find(entry.Find("file"), true, name);
  const CheckedFile rows_file = Find(entry.Find("rows"), false, name);
  const CheckedFile values_file = Find(entry.Find("values"), false, name);
  if (!ok()) return;
  ArrayFile rows, values;
  Status opened = OpenChecked(rows_file, ArrayPlace::kMapped, true, &rows);
  if (opened.ok()) opened = OpenChecked(values_file, ArrayPlace::kMapped, true, &values);
  if (opened.ok()) {
    opened = ArrayFile::OpenChanged(file.path, folders_.place, rows, values, out);
  }
  if (!opened.ok()) Fail(": " + opened.message());
}

ArrayFile StepReader::Array(const char* name, ItemType type, size_t rank) {
  ArrayFile array;
  if (!ok()) return array;
  OpenArray(name, &array);
  if (!ok()) return ArrayFile();
  if (array.type() != type || array.shape().size() != rank) {
    Fail("must have " + std::string(scorer::NameOf(type)) + " of " + std::to_string(rank) +
         " dimensions in " + array.path() + ", got " + scorer::NameOf(array.type()) + " of " +
         std::to_string(array.shape().size()));
    return ArrayFile();
  }
  return array;
}

bool StepReader::OptionalArray(const char* name, ItemType type, size_t rank, ArrayFile* out) {
  if (!HasArray(name)) return false;
  *out = Array(name, type, rank);
  return ok();
}

// Opens a table that is large enough to stay in a file.
Status StepReader::OpenTableFile(const Json& entry, const char* name, TableArray* out) {
  const bool changed = entry.is(Json::Kind::kObject);
  if (changed && folders_.base.empty()) return Status();  // OpenArray fails
  const CheckedFile file = Find(changed ? entry.Find("file") : &entry, changed, name);
  const CheckedFile rows = changed ? Find(entry.Find("rows"), false, name) : CheckedFile();
  const CheckedFile values = changed ? Find(entry.Find("values"), false, name) : CheckedFile();
  if (!ok()) return Status();
  const TableOptions& options = folders_.tables->options();
  ArrayHeader header;
  TWML_RETURN_IF_ERROR(ReadArrayHeader(file.path, &header));
  const int64_t bytes = header.size * SizeOf(header.type);
  if (header.shape.size() != 2 || bytes == 0 || bytes < options.least_bytes) return Status();
  ArrayFile numbers;
  if (changed) TWML_RETURN_IF_ERROR(OpenChecked(rows, ArrayPlace::kMapped, true, &numbers));
  return FileTable::Open(file.path, numbers, values.path, options.direct, &out->file);
}

TableArray StepReader::Table(const char* name) {
  TableArray table;
  if (!ok()) return table;
  const Json* const entry = arrays_->Find(name);
  if (entry != nullptr && folders_.tables->options().storage == TableStorage::kFile) {
    const Status opened = OpenTableFile(*entry, name, &table);
    if (!opened.ok()) Fail(": " + opened.message());
    if (!ok() || table.file != nullptr) return table;
  }
  OpenArray(name, &table.array);
  if (!ok()) return TableArray();
  const ItemType type = table.array.type();
  const bool known = type == ItemType::kFloat32 || type == ItemType::kUint16 ||
                     type == ItemType::kInt8 || type == ItemType::kUint8;
  if (!known || table.array.shape().size() != 2) {
    Fail("must have a table [N, D] of float32, uint16 (bfloat16), int8 or uint8 in " +
         table.array.path());
    return TableArray();
  }
  return table;
}

int64_t StepReader::Integer(const char* name) {
  const Json* const found = Attribute(name, Json::Kind::kInteger);
  return found == nullptr ? 0 : found->integer();
}

double StepReader::Number(const char* name) {
  const Json* const found = Attribute(name, Json::Kind::kNumber);
  return found == nullptr ? 0 : found->number();
}

bool StepReader::Bool(const char* name) {
  const Json* const found = Attribute(name, Json::Kind::kBool);
  return found != nullptr && found->boolean();
}

std::string StepReader::String(const char* name) {
  const Json* const found = Attribute(name, Json::Kind::kString);
  return found == nullptr ? std::string() : found->string();
}

std::string StepReader::StringOrNull(const char* name) {
  const Json* const found = ok() ? attributes_->Find(name) : nullptr;
  return found != nullptr && found->is(Json::Kind::kNull) ? std::string() : String(name);
}

std::vector<int64_t> StepReader::ToIntegers(const Json& list, bool* ok) {
  std::vector<int64_t> items;
  *ok = list.is(Json::Kind::kArray);
  for (const Json& item : list.items()) {
    *ok = *ok && item.is(Json::Kind::kInteger);
    items.push_back(item.integer());
  }
  return items;
}

std::vector<int64_t> StepReader::Integers(const char* name) {
  const Json* const found = Attribute(name, Json::Kind::kArray);
  if (found == nullptr) return {};
  bool integers;
  std::vector<int64_t> items = ToIntegers(*found, &integers);
  if (!integers) Fail(std::string("must have integers in \"") + name + "\"");
  return items;
}

std::vector<std::vector<int64_t>> StepReader::IntegerLists(const char* name) {
  const Json* const found = Attribute(name, Json::Kind::kArray);
  std::vector<std::vector<int64_t>> lists;
  if (found == nullptr) return lists;
  for (const Json& item : found->items()) {
    bool integers;
    lists.push_back(ToIntegers(item, &integers));
    if (!integers) Fail(std::string("must have lists of integers in \"") + name + "\"");
  }
  return lists;
}

int StepReader::Choice(const char* name, std::initializer_list<const char*> names) {
  const std::string chosen = String(name);
  std::string known;
  int i = 0;
  for (const char* candidate : names) {
    if (chosen == candidate) return i;
    known += std::string(i++ == 0 ? "'" : ", '") + candidate + "'";
  }
  Fail(std::string("must have one of ") + known + " as \"" + name + "\", got '" + chosen + "'");
  return 0;
}

void StepReader::Finish(Step* step) {
  step->name = name_;
  step->in = std::move(in_);
  step->out = std::move(out_);
}

}  // namespace twml::scorer
