// CRC-32 (ISO 3309, the polynomial of zlib) of bytes.
#ifndef TWML_CORE_CRC32_H_
#define TWML_CORE_CRC32_H_

#include <cstddef>
#include <cstdint>

namespace twml {

// The checksum of `size` bytes, or of these bytes after other bytes, whose checksum is `before`. It
// equals zlib.crc32 of Python.
uint32_t Crc32(const void* bytes, size_t size, uint32_t before = 0);

}  // namespace twml

#endif  // TWML_CORE_CRC32_H_
