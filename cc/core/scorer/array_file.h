// Arrays in the format NPY of NumPy, mapped into memory.
#ifndef TWML_CORE_SCORER_ARRAY_FILE_H_
#define TWML_CORE_SCORER_ARRAY_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/span.h"
#include "cc/core/status.h"

namespace twml::scorer {

enum class ItemType { kFloat32, kFloat64, kInt64, kInt32, kInt8, kUint8, kUint16, kBool };

const char* NameOf(ItemType type);
int64_t SizeOf(ItemType type);

// Reads a whole file of at most `max_bytes`.
Status ReadFile(const std::string& path, int64_t max_bytes, std::string* out);

// An array in C order. It is immutable; copies share its memory. Arrays of less than 1 MiB are
// copied from the file, and larger ones are mapped: processes share their memory, and rows that are
// not used are not loaded. A mapped file must not be truncated or written while it is in use.
class ArrayFile {
 public:
  // Reads version 1, 2 or 3 of the format with little-endian items.
  static Status Open(const std::string& path, ArrayFile* out);

  // The array of a file in which some rows are replaced, row rows[i] by values[i]. Pages
  // without replaced rows are shared with the other processes that map the file.
  static Status OpenChanged(const std::string& path, const ArrayFile& rows, const ArrayFile& values,
                            ArrayFile* out);

  const std::string& path() const { return path_; }
  ItemType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }
  // Whether the items are those of a mapped file, which have not all been read.
  bool mapped() const { return mapped_; }
  // CRC-32 of the items.
  uint32_t Checksum() const;

  // The items, whose type must be that of T: float, int64_t, int32_t, int8_t, uint8_t, uint16_t.
  template <class T>
  Span<const T> items() const {
    return {static_cast<const T*>(data_), size_};
  }

 private:
  static Status Open(const std::string& path, bool writable, ArrayFile* out);
  Status Replace(const ArrayFile& rows, const ArrayFile& values);

  std::string path_;
  ItemType type_ = ItemType::kFloat32;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
  bool mapped_ = false;
  const void* data_ = nullptr;
  std::shared_ptr<const void> memory_;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_ARRAY_FILE_H_
