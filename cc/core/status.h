// The result of checking user input: fine, or a message that names the argument, what was
// expected, what came and where.
//
// The core reports bad input by a Status alone; it does not throw for it, abort or print. Memory
// that runs out is std::bad_alloc, as everywhere in C++, and the callers (cc/tf, python) translate
// it.
#ifndef TWML_CORE_STATUS_H_
#define TWML_CORE_STATUS_H_

#include <sstream>
#include <string>
#include <utility>

namespace twml {

class [[nodiscard]] Status {
 public:
  Status() = default;  // fine
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

// Invalid("ids[", 3, "] = ", 9, " is out of range [0, 8)")
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
