// The program of an exported model: its registers, inputs and steps.
#ifndef TWML_CORE_SCORER_PROGRAM_H_
#define TWML_CORE_SCORER_PROGRAM_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/core/scorer/step.h"
#include "cc/core/scorer/table_files.h"
#include "cc/core/status.h"

namespace twml::scorer {

// An array that a request has.
struct ProgramInput {
  std::string name;
  Form form = Form::kDense;
  Register r = kNoRegister;           // kNoRegister: the array is not used
  Register row_splits = kNoRegister;  // of entries
  int64_t splits_input = -1;          // the position of their row splits among the inputs, or -1
  Type type = Type::kFloat;           // of a dense array
  bool shape_known = true;            // of a dense array
  bool is_time = false;               // strings that are times
  std::string separator;              // of the texts of a bag or of its weights; empty: not known
  std::vector<int64_t> dims;          // of a row of numbers or strings, if it is known

  // The number of strings of a row; 1 for columns.
  int64_t num_strings() const {
    int64_t number = 1;
    for (const int64_t dim : dims) number *= dim;
    return number;
  }
};

// One of several outputs of a model: some columns of the output of its program.
struct ProgramOutput {
  std::string name;
  std::vector<int64_t> dims;  // of a row
  int64_t first = 0, width = 0;
};

struct Program {
  // Reads the folder that export.to_scorer wrote.
  static Status Read(const std::string& folder, const TableOptions& options, Program* out);

  std::unique_ptr<TableFiles> tables;  // the tables in files
  std::vector<RegisterInfo> registers;
  std::vector<std::unique_ptr<Step>> raw_steps;  // make the features of the columns
  std::vector<std::unique_ptr<Step>> steps;      // make the output of the features
  std::vector<ProgramInput> features, columns;   // the two sets of arrays that a request may have
  Register output = kNoRegister;                 // dense float
  std::string output_name = "output";            // in the answers of a server
  // If the model has several outputs, which are the columns of `output`; otherwise empty.
  std::vector<ProgramOutput> outputs;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_PROGRAM_H_
