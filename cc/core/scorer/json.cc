#include "cc/core/scorer/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <system_error>

namespace twml::scorer {

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Status ParseDocument(Json* out) {
    TWML_RETURN_IF_ERROR(ParseValue(0, out));
    SkipSpace();
    return at_ == text_.size() ? Status() : Error("the end of the text");
  }

 private:
  static constexpr int kMaxDepth = 32;

  Status Error(const char* expected) const {
    return Invalid("byte ", at_, " of the JSON text: expected ", expected);
  }

  bool done() const { return at_ == text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }

  void SkipSpace() {
    while (!done() && (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t')) ++at_;
  }

  bool Take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  Status ParseValue(int depth, Json* out) {
    if (depth > kMaxDepth) return Error("at most 32 nested values");
    SkipSpace();
    switch (peek()) {
      case '{':
        return ParseObject(depth, out);
      case '[':
        return ParseArray(depth, out);
      case '"':
        out->kind_ = Json::Kind::kString;
        return ParseString(&out->string_);
      default:
        return ParseScalar(out);
    }
  }

  Status ParseScalar(Json* out) {
    if (Take("null")) return Status();
    const bool is_true = Take("true");
    if (is_true || Take("false")) {
      out->kind_ = Json::Kind::kBool;
      out->integer_ = is_true;
      return Status();
    }
    const double infinity = std::numeric_limits<double>::infinity();
    out->kind_ = Json::Kind::kNumber;
    if (Take("NaN")) {
      out->number_ = std::nan("");
    } else if (Take("Infinity")) {
      out->number_ = infinity;
    } else if (Take("-Infinity")) {
      out->number_ = -infinity;
    } else {
      return ParseNumber(out);
    }
    return Status();
  }

  bool TakeDigits() {
    const size_t start = at_;
    while (!done() && peek() >= '0' && peek() <= '9') ++at_;
    return at_ > start;
  }

  Status ParseNumber(Json* out) {
    const size_t start = at_;
    Take("-");
    const bool zero = peek() == '0';
    if (!TakeDigits() || (zero && at_ - start > (text_[start] == '-' ? 2 : 1))) {
      at_ = start;
      return Error("a value");
    }
    bool integral = true;
    if (Take(".")) {
      integral = false;
      if (!TakeDigits()) return Error("a digit");
    }
    if (Take("e") || Take("E")) {
      integral = false;
      if (!Take("+")) Take("-");
      if (!TakeDigits()) return Error("a digit");
    }
    out->kind_ = integral ? Json::Kind::kInteger : Json::Kind::kNumber;
    const char *const begin = text_.data() + start, *const end = text_.data() + at_;
    const auto [stop, error] = integral ? std::from_chars(begin, end, out->integer_)
                                        : std::from_chars(begin, end, out->number_);
    if (error == std::errc() && stop == end) return Status();
    at_ = start;
    return Error(integral ? "an integer of 64 bits" : "a number in the range of a double");
  }

  bool TakeHex(uint32_t* out) {
    if (text_.size() - at_ < 4) return false;
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = text_[at_ + i];
      const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f';
      if (!digit && !lower && !(c >= 'A' && c <= 'F')) return false;
      value =
          value * 16 + static_cast<uint32_t>(digit ? c - '0' : (lower ? c - 'a' : c - 'A') + 10);
    }
    at_ += 4;
    *out = value;
    return true;
  }

  static void AppendUtf8(uint32_t code, std::string* out) {
    const auto tail = [&](int shift) { *out += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) {
      *out += static_cast<char>(code);
    } else if (code < 0x800) {
      *out += static_cast<char>(0xc0 | code >> 6);
      tail(0);
    } else if (code < 0x10000) {
      *out += static_cast<char>(0xe0 | code >> 12);
      tail(6);
      tail(0);
    } else {
      *out += static_cast<char>(0xf0 | code >> 18);
      tail(12);
      tail(6);
      tail(0);
    }
  }

  Status ParseEscape(std::string* out) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kBytes = "\"\\/\b\f\n\r\t";
    if (const size_t i = kNames.find(peek()); i != std::string_view::npos) {
      ++at_;
      *out += kBytes[i];
      return Status();
    }
    uint32_t code, low;
    if (!Take("u") || !TakeHex(&code)) return Error("an escape sequence");
    if (code >= 0xdc00 && code < 0xe000) return Error("a pair of surrogates");
    if (code >= 0xd800 && code < 0xdc00) {
      if (!Take("\\u") || !TakeHex(&low) || low < 0xdc00 || low >= 0xe000) {
        return Error("a pair of surrogates");
      }
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    AppendUtf8(code, out);
    return Status();
  }

  Status ParseString(std::string* out) {
    ++at_;  // the quote
    while (true) {
      if (done()) return Error("the end of a string");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return Error("no control characters in a string");
      ++at_;
      if (c == '"') return Status();
      if (c == '\\') {
        TWML_RETURN_IF_ERROR(ParseEscape(out));
      } else {
        *out += c;
      }
    }
  }

  Status ParseArray(int depth, Json* out) {
    out->kind_ = Json::Kind::kArray;
    ++at_;
    SkipSpace();
    if (Take("]")) return Status();
    while (true) {
      TWML_RETURN_IF_ERROR(ParseValue(depth + 1, &out->items_.emplace_back()));
      SkipSpace();
      if (Take("]")) return Status();
      if (!Take(",")) return Error("',' or ']'");
    }
  }

  Status ParseObject(int depth, Json* out) {
    out->kind_ = Json::Kind::kObject;
    const size_t start = at_++;
    SkipSpace();
    if (Take("}")) return Status();
    while (true) {
      SkipSpace();
      if (peek() != '"') return Error("the name of a member");
      std::string name;
      TWML_RETURN_IF_ERROR(ParseString(&name));
      SkipSpace();
      if (!Take(":")) return Error("':'");
      Json value;
      TWML_RETURN_IF_ERROR(ParseValue(depth + 1, &value));
      out->members_.emplace_back(std::move(name), std::move(value));
      SkipSpace();
      if (Take("}")) break;
      if (!Take(",")) return Error("',' or '}'");
    }
    return SortNames(start, out);
  }

  // Sorts the members of the object that begins at `start` by their names, which must be distinct.
  static Status SortNames(size_t start, Json* out) {
    auto& order = out->by_name_;
    order.resize(out->members_.size());
    std::iota(order.begin(), order.end(), uint32_t{0});
    const auto name = [out](uint32_t i) -> const std::string& { return out->members_[i].first; };
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return name(a) < name(b); });
    const auto equal = std::adjacent_find(
        order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return name(a) == name(b); });
    if (equal == order.end()) return Status();
    return Invalid("byte ", start, " of the JSON text: expected members with distinct names, got '",
                   name(*equal), "' twice");
  }

  const std::string_view text_;
  size_t at_ = 0;
};

Status Json::Parse(std::string_view text, Json* out) {
  *out = Json();
  return JsonParser(text).ParseDocument(out);
}

const Json* Json::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [this](uint32_t i, std::string_view n) { return members_[i].first < n; });
  const bool known = found != by_name_.end() && members_[*found].first == name;
  return known ? &members_[*found].second : nullptr;
}

const char* Json::NameOf(Kind kind) {
  constexpr const char* kNames[] = {"null",     "true or false", "an integer", "a number",
                                    "a string", "an array",      "an object"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace twml::scorer
