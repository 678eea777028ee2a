// Spellings of fields of text: the null values of numbers, and the categories that are integers or
// bools.
#ifndef TWML_CORE_CATEGORY_TEXT_H_
#define TWML_CORE_CATEGORY_TEXT_H_

#include <cstdint>
#include <string_view>

namespace twml {

// Whether text that should be a number, an integer or a bool is one of the usual ways to write that
// there is none. The empty text is not among them. twml_ops/_category_hash.py has the same list.
inline bool IsNull(std::string_view text) {
  constexpr std::string_view kNulls[] = {
      "-",   "?",    "NA",  "N/A", "n/a", "na",   "#N/A", "#NA",  "<NA>", "\\N",  "NULL", "Null",
      "nil", "null", "NaN", "NAN", "nan", "-NaN", "-nan", "None", "NONE", "none", "."};
  if (text.size() > 4) return false;
  for (const std::string_view null : kNulls) {
    if (text == null) return true;
  }
  return false;
}

// The text without the white space around it.
inline std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// The spelling of a category of a column whose categories are integers or bools: that of Python's
// `str` of an integer, and `true` or `false`. `3.0`, `3.`, ` 3` and `+3` are `3`, and `-0` is `0`.
// Null values and white space are empty. Other text stays as it is, so that `007` is no `7`.
inline std::string_view TypedCategory(std::string_view whole) {
  const std::string_view text = Trimmed(whole);
  if (text == "True" || text == "TRUE" || text == "true") return "true";
  if (text == "False" || text == "FALSE" || text == "false") return "false";
  if (text.empty() || IsNull(text)) return {};
  const size_t sign = text[0] == '-' || text[0] == '+';
  size_t end = sign;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  if (end == sign || (text[sign] == '0' && end > sign + 1)) return whole;
  if (end < text.size()) {
    if (text[end] != '.' || text.find_first_not_of('0', end + 1) != text.npos) return whole;
  }
  const bool negative = sign == 1 && text[0] == '-' && text[1] != '0';
  const size_t begin = negative ? 0 : sign;
  return text.substr(begin, end - begin);
}

}  // namespace twml

#endif  // TWML_CORE_CATEGORY_TEXT_H_
