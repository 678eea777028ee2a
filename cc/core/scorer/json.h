// JSON (RFC 8259) as the program of a scorer is written in, with the NaN and Infinity of Python.
#ifndef TWML_CORE_SCORER_JSON_H_
#define TWML_CORE_SCORER_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/status.h"

namespace twml::scorer {

// A value. Objects keep the order of their members, whose names are distinct. Nothing depends on
// the locale of the program.
class Json {
 public:
  enum class Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  // Parses a whole text. Values are nested at most 32 deep. A number without a fraction and an
  // exponent is an integer, and must fit into 64 bits; others must be in the range of a double.
  static Status Parse(std::string_view text, Json* out);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }
  double number() const { return is(Kind::kInteger) ? static_cast<double>(integer_) : number_; }
  const std::string& string() const { return string_; }
  const std::vector<Json>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }

  // The member with this name, or null. Takes logarithmic time.
  const Json* Find(std::string_view name) const;

  // The name of a kind in messages, for example "a string".
  static const char* NameOf(Kind kind);

 private:
  friend class JsonParser;

  Kind kind_ = Kind::kNull;
  int64_t integer_ = 0;
  double number_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
  std::vector<uint32_t> by_name_;  // the positions of members, sorted by their names
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_JSON_H_
