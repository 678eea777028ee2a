#include "cc/core/crc32.h"

#include <array>
#include <cstring>

namespace twml {
namespace {

// Eight bytes at a time ("slicing by 8": Kounavis and Berry 2008, "Novel Table Lookup-Based
// Algorithms for High-Performance CRC Generation"). Table k has the effect of a byte that is
// followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  constexpr uint32_t kPolynomial = 0xEDB88320;
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t Crc32(const void* bytes, size_t size, uint32_t before) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bytes are read eight at a time");
  const auto* at = static_cast<const uint8_t*>(bytes);
  uint32_t crc = ~before;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t next;
    std::memcpy(&next, at, sizeof(next));
    next ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(next >> (8 * k)) & 255];
  }
  for (; size > 0; --size, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 255];
  return ~crc;
}

}  // namespace twml
