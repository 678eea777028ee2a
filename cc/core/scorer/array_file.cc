#include "cc/core/scorer/array_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "cc/core/crc32.h"

namespace twml::scorer {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "items are read as little-endian");

constexpr int64_t kCopiedBytes = 1 << 20;  // arrays below this size are copied

// An open file, which is closed at the end.
class File {
 public:
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  Status Open(const std::string& path) {
    path_ = path;
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) return Error("cannot be opened");
    struct stat info;
    if (::fstat(descriptor_, &info) != 0) return Error("cannot be read");
    if (!S_ISREG(info.st_mode)) return Invalid(path, " must be a file");
    size_ = info.st_size;
    return Status();
  }

  int64_t size() const { return size_; }

  Status Read(int64_t offset, int64_t bytes, char* out) const {
    while (bytes > 0) {
      const ssize_t read = ::pread(descriptor_, out, static_cast<size_t>(bytes), offset);
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return Error("cannot be read");
      if (read == 0) return Invalid(path_, " ends after ", offset, " bytes");
      out += read;
      offset += read;
      bytes -= read;
    }
    return Status();
  }

  // The whole file, mapped. What is written to a writable mapping does not reach the file.
  Status Map(bool writable, std::shared_ptr<const void>* out) const {
    const auto size = static_cast<size_t>(size_);
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    const int flags = writable ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
    void* const memory = ::mmap(nullptr, size, protection, flags, descriptor_, 0);
    if (memory == MAP_FAILED) return Error("cannot be mapped");
    ::madvise(memory, size, MADV_RANDOM);
    out->reset(memory, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
    return Status();
  }

 private:
  Status Error(const char* problem) const {
    return Invalid(path_, " ", problem, ": ", std::generic_category().message(errno));
  }

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

// The header is the text of a Python dict, for example
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Header {
 public:
  explicit Header(std::string_view text) : text_(text) {}

  // The text after the key, or an empty one.
  std::string_view After(std::string_view key) const {
    const std::string quoted = "'" + std::string(key) + "':";
    const size_t at = text_.find(quoted);
    if (at == std::string_view::npos) return {};
    std::string_view rest = text_.substr(at + quoted.size());
    while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
    return rest;
  }

  bool ParseType(ItemType* type) const {
    constexpr std::pair<std::string_view, ItemType> kTypes[] = {
        {"'<f4'", ItemType::kFloat32}, {"'<f8'", ItemType::kFloat64}, {"'<i8'", ItemType::kInt64},
        {"'<i4'", ItemType::kInt32},   {"'|i1'", ItemType::kInt8},    {"'|u1'", ItemType::kUint8},
        {"'<u2'", ItemType::kUint16},  {"'|b1'", ItemType::kBool}};
    const std::string_view text = After("descr");
    for (const auto& [name, known] : kTypes) {
      if (text.substr(0, name.size()) != name) continue;
      *type = known;
      return true;
    }
    return false;
  }

  bool ParseShape(std::vector<int64_t>* shape, int64_t* size) const {
    constexpr int64_t kMaxItems = int64_t{1} << 48, kMaxEmpty = int64_t{1} << 24;
    std::string_view text = After("shape");
    if (text.empty() || text[0] != '(') return false;
    text.remove_prefix(1);
    const auto take = [&text](char c) {
      while (!text.empty() && text[0] == ' ') text.remove_prefix(1);
      const bool found = !text.empty() && text[0] == c;
      if (found) text.remove_prefix(1);
      return found;
    };
    *size = 1;
    int64_t bound = 1;  // the product of the sizes that are not 0
    while (!take(')')) {
      int64_t dim = 0;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), dim);
      if (error != std::errc() || dim < 0 || shape->size() == 8) return false;
      text.remove_prefix(static_cast<size_t>(stop - text.data()));
      shape->push_back(dim);
      *size *= dim > 0 ? 1 : 0;
      if (dim > 0 && __builtin_mul_overflow(bound, dim, &bound)) return false;
      if (!take(',')) {
        if (!take(')')) return false;
        break;
      }
    }
    // What is done for each row or column of an array without items must not take for ever.
    if (bound > (*size == 0 ? kMaxEmpty : kMaxItems)) return false;
    *size *= bound;
    // NumPy stores arrays of one dimension in C order.
    return shape->size() < 2 || After("fortran_order").substr(0, 5) == "False";
  }

 private:
  const std::string_view text_;
};

Status ReadHeader(const std::string& path, const File& file, ArrayHeader* out) {
  *out = ArrayHeader();
  constexpr std::string_view kMagic = "\x93NUMPY";
  char start[12];
  const int64_t known = std::min<int64_t>(file.size(), sizeof(start));
  TWML_RETURN_IF_ERROR(file.Read(0, known, start));
  if (known < 10 || std::string_view(start, kMagic.size()) != kMagic) {
    return Invalid(path, " is not a file of the format NPY");
  }
  const int version = start[6];
  if (version < 1 || version > 3) {
    return Invalid(path, " has the version ", version, " of the format NPY, expected 1 to 3");
  }
  const int64_t header_begin = version == 1 ? 10 : 12;
  uint32_t header_size = 0;
  if (known < header_begin) return Invalid(path, " ends in its header");
  std::memcpy(&header_size, start + 8, static_cast<size_t>(header_begin - 8));
  constexpr uint32_t kMaxHeader = 1 << 16;
  out->data_begin = header_begin + header_size;
  if (header_size > kMaxHeader || out->data_begin > file.size()) {
    return Invalid(path, " ends in its header");
  }
  std::string text(header_size, '\0');
  TWML_RETURN_IF_ERROR(file.Read(header_begin, header_size, text.data()));
  const Header header(text);
  if (!header.ParseType(&out->type) || !header.ParseShape(&out->shape, &out->size)) {
    return Invalid(path, " must have an array whose type and shape a scorer reads, got ",
                   text.substr(0, 200));
  }
  const int64_t bytes = out->size * SizeOf(out->type);
  if (file.size() - out->data_begin < bytes) {
    return Invalid(path, " must have ", bytes, " bytes of items, got ",
                   file.size() - out->data_begin);
  }
  return Status();
}

Status Damaged(const std::string& path) {
  return Invalid(path, " has another checksum than the program says: it is damaged, or is a file ",
                 "of another export");
}

// Memory at the start of a cache line.
char* NewLines(int64_t bytes, std::shared_ptr<const void>* owner) {
  constexpr int64_t kLine = 64;
  void* const memory = std::aligned_alloc(static_cast<size_t>(kLine),
                                          static_cast<size_t>((bytes / kLine + 1) * kLine));
  if (memory == nullptr) throw std::bad_alloc();
  owner->reset(memory, [](const void* p) { std::free(const_cast<void*>(p)); });
  return static_cast<char*>(memory);
}

// Memory of large pages, if the system has them.
char* NewPages(int64_t bytes, std::shared_ptr<const void>* owner) {
  const auto size = static_cast<size_t>(bytes);
  void* const memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  owner->reset(memory, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
#ifdef MADV_HUGEPAGE
  ::madvise(memory, size, MADV_HUGEPAGE);
#endif
  return static_cast<char*>(memory);
}

}  // namespace

const char* NameOf(ItemType type) {
  constexpr const char* kNames[] = {"float32", "float64", "int64",  "int32",
                                    "int8",    "uint8",   "uint16", "bool"};
  return kNames[static_cast<int>(type)];
}

int64_t SizeOf(ItemType type) {
  constexpr int64_t kSizes[] = {4, 8, 8, 4, 1, 1, 2, 1};
  return kSizes[static_cast<int>(type)];
}

Status ReadFile(const std::string& path, int64_t max_bytes, std::string* out) {
  File file;
  TWML_RETURN_IF_ERROR(file.Open(path));
  if (file.size() > max_bytes) {
    return Invalid(path, " must have at most ", max_bytes, " bytes, got ", file.size());
  }
  out->resize(static_cast<size_t>(file.size()));
  return file.Read(0, file.size(), out->data());
}

Status ReadArrayHeader(const std::string& path, ArrayHeader* out) {
  File file;
  TWML_RETURN_IF_ERROR(file.Open(path));
  return ReadHeader(path, file, out);
}

Status CheckFile(const std::string& path, int64_t bytes, uint32_t checksum) {
  File file;
  TWML_RETURN_IF_ERROR(file.Open(path));
  if (file.size() != bytes) {
    return Invalid(path, " must have ", bytes, " bytes, got ", file.size());
  }
  const int64_t part = std::min(bytes, kChecksumBytes);
  std::string text(static_cast<size_t>(2 * part), '\0');
  TWML_RETURN_IF_ERROR(file.Read(0, part, text.data()));
  TWML_RETURN_IF_ERROR(file.Read(bytes - part, part, text.data() + part));
  return Crc32(text.data(), text.size()) == checksum ? Status() : Damaged(path);
}

Status ArrayFile::CheckItems(uint32_t checksum) const {
  const auto bytes = static_cast<size_t>(size_ * SizeOf(type_));
  return Crc32(data_, bytes) == checksum ? Status() : Damaged(path_);
}

Status ArrayFile::Open(const std::string& path, ArrayPlace place, ArrayFile* out) {
  return Open(path, place, false, out);
}

Status ArrayFile::OpenChanged(const std::string& path, ArrayPlace place, const ArrayFile& rows,
                              const ArrayFile& values, ArrayFile* out) {
  TWML_RETURN_IF_ERROR(Open(path, place, true, out));
  return out->Replace(rows, values);
}

// Needs memory that is writable: a private mapping or a copy.
Status ArrayFile::Replace(const ArrayFile& rows, const ArrayFile& values) {
  if (rows.type_ != ItemType::kInt64 || rows.shape_.size() != 1) {
    return Invalid(rows.path_, " must have the numbers of rows, int64 of 1 dimension");
  }
  bool fits = values.type_ == type_ && !shape_.empty() && values.shape_.size() == shape_.size();
  if (fits) {
    fits = values.shape_[0] == rows.size_ &&
           std::equal(shape_.begin() + 1, shape_.end(), values.shape_.begin() + 1);
  }
  if (!fits) {
    return Invalid(values.path_, " must have ", rows.size_, " rows of the array in ", path_);
  }
  const int64_t num_rows = shape_[0];
  const int64_t row_bytes = num_rows == 0 ? 0 : size_ / num_rows * SizeOf(type_);
  char* const data = static_cast<char*>(const_cast<void*>(data_));
  const auto* const from = static_cast<const char*>(values.data_);
  const auto numbers = rows.items<int64_t>();
  for (int64_t i = 0; i < rows.size_; ++i) {
    if (numbers[i] < 0 || numbers[i] >= num_rows) {
      return Invalid(rows.path_, " has the row ", numbers[i], " at ", i, ", out of range [0, ",
                     num_rows, ")");
    }
    std::memcpy(data + numbers[i] * row_bytes, from + i * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  return Status();
}

Status ArrayFile::Open(const std::string& path, ArrayPlace place, bool writable, ArrayFile* out) {
  *out = ArrayFile();
  out->path_ = path;
  File file;
  TWML_RETURN_IF_ERROR(file.Open(path));
  ArrayHeader header;
  TWML_RETURN_IF_ERROR(ReadHeader(path, file, &header));
  out->type_ = header.type;
  out->shape_ = std::move(header.shape);
  out->size_ = header.size;
  const int64_t bytes = out->size_ * SizeOf(out->type_), begin = header.data_begin;
  const bool large = bytes >= kCopiedBytes;
  if (large && place == ArrayPlace::kMapped && begin % SizeOf(out->type_) == 0) {
    TWML_RETURN_IF_ERROR(file.Map(writable, &out->memory_));
    out->mapped_ = true;
    out->data_ = static_cast<const char*>(out->memory_.get()) + begin;
    return Status();
  }
  char* const memory = large ? NewPages(bytes, &out->memory_) : NewLines(bytes, &out->memory_);
  out->data_ = memory;
  return file.Read(begin, bytes, memory);
}

}  // namespace twml::scorer
