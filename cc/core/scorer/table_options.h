// How a scorer keeps its large tables, and what it counts when it reads them from files.
#ifndef TWML_CORE_SCORER_TABLE_OPTIONS_H_
#define TWML_CORE_SCORER_TABLE_OPTIONS_H_

#include <cstdint>

#include "cc/core/scorer/row_reader.h"
#include "cc/core/status.h"

namespace twml::scorer {

enum class TableStorage {
  kMapped,  // files mapped into memory
  kMemory,  // in memory of the process
  kFile,    // in files, of which a cache in memory has the rows that are used most
};

struct TableOptions {
  TableStorage storage = TableStorage::kMapped;
  // Of kFile alone:
  int64_t cache_bytes = int64_t{256} << 20;  // memory of the caches of rows of all tables
  int64_t sums_cache_bytes = 0;              // memory of the cache of sums of rows
  int64_t least_bytes = int64_t{1} << 20;    // smaller tables are in memory
  bool direct = false;                       // reads go past the page cache
  RowReaderOptions reader;

  Status Check() const {
    if (cache_bytes < 0) return Invalid("cache_bytes must be at least 0, got ", cache_bytes);
    if (sums_cache_bytes < 0) {
      return Invalid("sums_cache_bytes must be at least 0, got ", sums_cache_bytes);
    }
    if (reader.depth < 1 || reader.depth > 4096) {
      return Invalid("queue_depth must be in [1, 4096], got ", reader.depth);
    }
    if (storage == TableStorage::kFile) return Status();
    if (direct) return Invalid("direct needs tables in files");
    if (sums_cache_bytes > 0) return Invalid("sums_cache_bytes needs tables in files");
    return Status();
  }
};

// Numbers since the scorer was loaded.
struct TableStatistics {
  int64_t entries = 0;  // ids whose rows were added up or copied
  int64_t rows = 0;     // different rows of each request, in the tables of all steps
  int64_t hits = 0;     // of these, rows that were in the cache
  int64_t misses = 0;   // rows that were not in the cache
  int64_t reads = 0;    // of files; a read may have several rows
  int64_t bytes_read = 0;
  int64_t bytes_needed = 0;  // of the rows that were read
  int64_t sum_hits = 0;      // sums of rows that were in the cache of sums
  int64_t sum_misses = 0;    // bags whose sum was not in the cache
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_TABLE_OPTIONS_H_
