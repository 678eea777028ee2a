// A cache of sums of rows by the exact ids and values that were added up.
#ifndef TWML_CORE_SCORER_SUMS_CACHE_H_
#define TWML_CORE_SCORER_SUMS_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace twml::scorer {

// The terms of a sum. All values are 1 if `values` is null.
struct SumTerms {
  int64_t table;
  const int64_t* ids;
  const float* values;
  int64_t n;
};

// The sums that were used least recently leave the cache. Any number of threads may use it.
class SumsCache {
 public:
  explicit SumsCache(int64_t bytes);

  // Appends the sum of the same terms to `out`, if it is known. `key` is memory for the call.
  bool Find(const SumTerms& terms, std::string* key, std::vector<float>* out);

  void Insert(const SumTerms& terms, const float* sum, int64_t dim, std::string* key);

  // The memory that the sums take.
  int64_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::vector<float> sum;
  };
  struct Hash {
    size_t operator()(std::string_view key) const;
  };
  struct Part {
    mutable std::mutex mu;
    std::list<Entry> entries;  // the one that was used last is the first
    std::unordered_map<std::string_view, std::list<Entry>::iterator, Hash> by_key;
    int64_t bytes = 0;
  };

  static int64_t BytesOf(const Entry& entry);
  Part& PartOf(std::string_view key);

  const int64_t bytes_of_part_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace twml::scorer

#endif  // TWML_CORE_SCORER_SUMS_CACHE_H_
