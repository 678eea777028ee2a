// Reads the steps of a program: their registers, arrays and attributes.
#ifndef TWML_CORE_SCORER_STEP_READER_H_
#define TWML_CORE_SCORER_STEP_READER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/scorer/array_file.h"
#include "cc/core/scorer/json.h"
#include "cc/core/scorer/step.h"
#include "cc/core/scorer/table_files.h"
#include "cc/core/status.h"

namespace twml::scorer {

// The registers of a program while its steps are read. It finds out what the registers are: types
// of dense inputs and the row splits of entries are not written in a program, but follow from the
// steps.
class RegisterTable {
 public:
  // An input of the program, or a register that a step writes. Names must be new.
  Status Add(const std::string& name, Form form, Register* out);
  // A register that Find does not find, so that no step of a file reads it.
  Register AddHidden(const std::string& name, Form form);
  Register Find(const std::string& name) const;

  const std::vector<RegisterInfo>& infos() const { return infos_; }
  const RegisterInfo& info(Register r) const { return infos_[r]; }

  // Entries that have the same row splits, and row splits.
  void JoinEntries(Register a, Register b) { Join(&entries_, a, b); }
  // Dense registers of the same type.
  void JoinTypes(Register a, Register b) { Join(&types_, a, b); }
  // What a step makes a register, and what a step would like it to be.
  void Produce(Register r, Type type) { produced_.emplace_back(r, type); }
  void Want(Register r, Type type) { wanted_.emplace_back(r, type); }

  void SetType(Register r, Type type) { infos_[r].type = type; }

  // Determines types and row splits of all registers.
  Status Resolve();

 private:
  static Register Root(std::vector<Register>* parents, Register r);
  static void Join(std::vector<Register>* parents, Register a, Register b);
  Status ResolveTypes();
  Status ResolveRowSplits();

  std::vector<RegisterInfo> infos_;
  std::map<std::string, Register> by_name_;
  std::vector<Register> entries_, types_;  // parents of disjoint sets
  std::vector<std::pair<Register, Type>> produced_, wanted_;
};

// An input of a step that has to be of a type.
struct TypedInput {
  size_t step, index;
  Type type;
};

// Whether a value is the name of a file in a folder, without a path.
bool IsFileName(const Json& name);

// Where the arrays of a program are.
struct ArrayFolders {
  std::string folder;
  std::string base;  // has the arrays of which only changed rows are in `folder`; empty: none
  // For each file the name, and its size, the CRC-32 of its ends (see CheckFile) and that of its
  // items, which is not in all exports. Null: not known.
  const Json* checksums = nullptr;
  const Json* base_checksums = nullptr;
  ArrayPlace place = ArrayPlace::kMapped;
  TableFiles* tables = nullptr;
};

// A table in memory, or a file from which its rows are read.
struct TableArray {
  ArrayFile array;
  std::unique_ptr<FileTable> file;
};

// Reads one step. The first error is kept; what is read after it is empty.
class StepReader {
 public:
  StepReader(const Json& step, size_t number, const ArrayFolders& folders, RegisterTable* registers,
             std::vector<TypedInput>* typed);

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  const std::string& op() const { return op_; }
  const std::string& name() const { return name_; }
  void Fail(const std::string& problem);

  // Inputs and outputs of the step, in order. Each is declared once.
  size_t num_inputs() const { return in_names_.size(); }
  size_t num_outputs() const { return out_names_.size(); }
  void RequireInputs(size_t number);
  void RequireOutputs(size_t number);
  void DenseInput(size_t i, Type type);
  void DenseInputOfAnyType(size_t i);
  bool has_input(size_t i) const { return i < in_names_.size() && in_names_[i] != nullptr; }
  void IdsInput(size_t i);
  void StringsInput(size_t i);
  void BagInput(size_t i);    // inputs i to i + 2: the strings of bags, null, row splits
  void BatchInput(size_t i);  // inputs i to i + 2: ids, values or null, row splits
  void DenseOutput(size_t i, Type type);
  void DenseOutputOfInputType(size_t i);                 // all inputs and the output have one type
  void EntriesOutput(size_t i, Form form, size_t like);  // `like`: ids with the same row splits
  void BatchOutput(size_t i);  // outputs i to i + 2, a new batch; values are null if in[1] is

  // Arrays. `rank` is the number of dimensions that the array must have.
  ArrayFile Array(const char* name, ItemType type, size_t rank);
  bool OptionalArray(const char* name, ItemType type, size_t rank, ArrayFile* out);
  bool HasArray(const char* name) const;
  // An array [N, D] of float32, bfloat16 (uint16), int8, or uint8 (rows of codes).
  TableArray Table(const char* name);
  TableFiles* table_files() const { return folders_.tables; }

  // Attributes.
  int64_t Integer(const char* name);
  double Number(const char* name);
  bool Bool(const char* name);
  std::string String(const char* name);
  std::string StringOrNull(const char* name);  // empty for null
  std::vector<int64_t> Integers(const char* name);
  std::vector<std::vector<int64_t>> IntegerLists(const char* name);
  // The position of an attribute among names.
  int Choice(const char* name, std::initializer_list<const char*> names);

  // Moves what was declared into the step.
  void Finish(Step* step);

 private:
  const Json* Member(const Json& object, const char* name, Json::Kind kind);
  const Json* Attribute(const char* name, Json::Kind kind);
  Register Input(size_t i, Form form);
  Register Output(size_t i, Form form);
  void OpenArray(const char* name, ArrayFile* out);
  void OpenChangedArray(const Json& entry, const char* name, ArrayFile* out);
  Status OpenTableFile(const Json& entry, const char* name, TableArray* out);
  struct CheckedFile;
  CheckedFile Find(const Json* file, bool base, const char* name);
  static Status OpenChecked(const CheckedFile& file, ArrayPlace place, bool even_mapped,
                            ArrayFile* out);
  static std::vector<int64_t> ToIntegers(const Json& list, bool* ok);

  Status status_;
  const ArrayFolders& folders_;
  std::string op_, name_;
  const Json* arrays_ = nullptr;
  const Json* attributes_ = nullptr;
  std::vector<const std::string*> in_names_, out_names_;
  std::vector<Register> in_, out_;
  size_t number_;
  RegisterTable* registers_;
  std::vector<TypedInput>* typed_;
};

using MakeStep = std::unique_ptr<Step> (*)(StepReader& reader);

// The function that makes the steps of an operation, or null if there is none.
MakeStep FindArrayStep(const std::string& op);
MakeStep FindCalibrationStep(const std::string& op);
MakeStep FindCategoryStep(const std::string& op);
MakeStep FindDenseStep(const std::string& op);
MakeStep FindFieldStep(const std::string& op);
MakeStep FindInteractionStep(const std::string& op);
MakeStep FindSparseStep(const std::string& op);
MakeStep FindStringStep(const std::string& op);
MakeStep FindVectorStep(const std::string& op);

// A step that converts a dense register.
std::unique_ptr<Step> MakeCast(Register from, Type from_type, Register to, Type to_type);

// Whether a step is nothing but an activation, and which one.
bool ActivationOf(const Step& step, Activation* activation);

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_STEP_READER_H_
