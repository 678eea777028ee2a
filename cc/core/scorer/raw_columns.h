// The steps that make a model's features of raw columns: numbers and texts.
#ifndef TWML_CORE_SCORER_RAW_COLUMNS_H_
#define TWML_CORE_SCORER_RAW_COLUMNS_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/core/scorer/json.h"
#include "cc/core/scorer/step.h"
#include "cc/core/scorer/step_reader.h"
#include "cc/core/status.h"

namespace twml::scorer {

// A column, and its register, or kNoRegister if the model does not use it.
struct RawColumn {
  std::string name;
  Form form;
  Register r;
  bool is_time = false;        // strings that are times
  std::string separator = {};  // of the texts of a bag or of its weights; empty: not known
};

// Reads the member "raw" of a program, as twml_ops/export/raw_columns.py writes it. Adds the
// columns and the steps that make features of them. Features are registers of `registers`; those
// that are not there are not made.
Status ReadRawColumns(const Json& raw, RegisterTable* registers, std::vector<RawColumn>* columns,
                      std::vector<std::unique_ptr<Step>>* steps);

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_RAW_COLUMNS_H_
