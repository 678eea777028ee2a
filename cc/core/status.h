// The result of a call: OK, or an error message about an invalid argument. The message names the
// argument, what was expected, the value received, and where.
//
// The core reports invalid arguments only by a Status. It does not throw, abort or print for them.
// If memory runs out, the core throws std::bad_alloc, which the callers (cc/tf, python) translate.
#ifndef TWML_CORE_STATUS_H_
#define TWML_CORE_STATUS_H_

#include <sstream>
#include <string>
#include <utility>

namespace twml {

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  static Status Invalid(std::string message) {
    Status s;
    s.message_ = std::move(message);
    return s;
  }
  bool ok() const { return message_.empty(); }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

// For example: Invalid("ids[", 3, "] = ", 9, " is out of range [0, 8)")
template <class... Parts>
Status Invalid(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return Status::Invalid(out.str());
}

}  // namespace twml

#define TWML_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                       \
    if (::twml::Status twml_status_ = (expression); !twml_status_.ok()) return twml_status_; \
  } while (false)

#endif  // TWML_CORE_STATUS_H_
