// The fuzz targets: what each does with any bytes, and valid inputs to begin with.
#ifndef TWML_TESTS_FUZZ_TARGETS_H_
#define TWML_TESTS_FUZZ_TARGETS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/parallel.h"
#include "cc/core/span.h"

namespace twml::fuzz {

// A wrong result ends the process, as an error of a sanitizer does.
#define TWML_REQUIRE(condition)                                                      \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: required: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

// Takes numbers and arrays from the beginning of an input. At its end all numbers are 0.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool done() const { return size_ == 0; }

  template <class T>
  T Take() {
    T value{};
    const size_t n = size_ < sizeof(T) ? size_ : sizeof(T);
    if (n > 0) std::memcpy(&value, data_, n);
    Skip(n);
    return value;
  }
  // A number in [0, limit), of one or two bytes.
  int64_t Below(int64_t limit) {
    return limit <= 256 ? Take<uint8_t>() % limit : Take<uint16_t>() % limit;
  }
  // An id: mostly a small one, otherwise any number.
  int64_t Id() {
    const auto first = Take<uint8_t>();
    return first < 240 ? first % 24 : Take<int64_t>();
  }
  // Exactly `count` items; those behind the end of the input are 0.
  template <class T>
  std::vector<T> Array(int64_t count) {
    std::vector<T> items(static_cast<size_t>(count));
    for (T& item : items) {
      if (done()) break;
      item = Take<T>();
    }
    return items;
  }
  std::string_view Rest() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  void Skip(size_t n) {
    data_ += n;
    size_ -= n;
  }

  const uint8_t* data_;
  size_t size_;
};

// The inverse of Input, for seeds.
class Output {
 public:
  template <class T>
  Output& Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  template <class T>
  Output& PutAll(const std::vector<T>& items) {
    for (const T item : items) Put(item);
    return *this;
  }
  Output& Text(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

inline Span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), static_cast<int64_t>(text.size())};
}

// Each item as a piece of its own, the last one first.
inline void Backwards(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t i = total; i-- > 0;) body(i, i + 1);
}

struct Target {
  const char* name;
  void (*run)(Input input);
  std::vector<std::string> (*seeds)();
};

std::vector<Target> TextTargets();
std::vector<Target> StateTargets();
std::vector<Target> BatchTargets();
std::vector<Target> ScorerTargets();

}  // namespace twml::fuzz

#endif  // TWML_TESTS_FUZZ_TARGETS_H_
