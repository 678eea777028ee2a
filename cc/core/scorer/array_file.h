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

// What the header of a file says, and where its items are.
struct ArrayHeader {
  ItemType type = ItemType::kFloat32;
  std::vector<int64_t> shape;
  int64_t size = 0;        // the number of items
  int64_t data_begin = 0;  // the offset of the first item
};

// Reads the header of version 1, 2 or 3 of the format with little-endian items, and checks that the
// file has all items.
Status ReadArrayHeader(const std::string& path, ArrayHeader* out);

// Checks the size of a file, and the CRC-32 of its first and last kChecksumBytes bytes: a file that
// was cut, copied in part, or is of another export is found without reading all of it.
constexpr int64_t kChecksumBytes = 8192;
Status CheckFile(const std::string& path, int64_t bytes, uint32_t checksum);

// Where the items of a large array are.
enum class ArrayPlace {
  kMapped,  // in the file, mapped into memory: processes share them, and they are loaded when used
  kMemory,  // in memory of this process
};

// An array in C order. It is immutable; copies share its memory. Arrays of less than 1 MiB are
// always copied from the file. A mapped file must not be truncated or written while it is in use.
class ArrayFile {
 public:
  static Status Open(const std::string& path, ArrayPlace place, ArrayFile* out);

  // The array of a file in which some rows are replaced, row rows[i] by values[i]. Pages
  // without replaced rows are shared with the other processes that map the file.
  static Status OpenChanged(const std::string& path, ArrayPlace place, const ArrayFile& rows,
                            const ArrayFile& values, ArrayFile* out);

  const std::string& path() const { return path_; }
  ItemType type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }
  // Whether the items are in a mapped file, so that not all of them have been read.
  bool mapped() const { return mapped_; }
  // Compares the CRC-32 of all items.
  Status CheckItems(uint32_t checksum) const;

  // The items, whose type must be that of T: float, int64_t, int32_t, int8_t, uint8_t, uint16_t.
  template <class T>
  Span<const T> items() const {
    return {static_cast<const T*>(data_), size_};
  }

 private:
  static Status Open(const std::string& path, ArrayPlace place, bool writable, ArrayFile* out);
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
