// A view of contiguous memory: a pointer and a length. std::span requires C++20.
#ifndef TWML_CORE_SPAN_H_
#define TWML_CORE_SPAN_H_

#include <cstdint>
#include <type_traits>
#include <vector>

namespace twml {

template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, int64_t size) : data_(data), size_(size) {}
  template <class U, class = std::enable_if_t<std::is_same_v<std::remove_const_t<T>, U>>>
  Span(std::vector<U>& v) : data_(v.data()), size_(static_cast<int64_t>(v.size())) {}
  template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
  Span(const std::vector<U>& v) : data_(v.data()), size_(static_cast<int64_t>(v.size())) {}
  template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
  Span(Span<U> s) : data_(s.data()), size_(s.size()) {}

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](int64_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace twml

#endif  // TWML_CORE_SPAN_H_
