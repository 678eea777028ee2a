// Reuse distances of a sequence of ids, and the hit rates of LRU caches that follow from them.
//
// The reuse distance of an access is the number of distinct other ids since the last access to the
// same id. A cache of the C least recently used ids serves exactly the accesses with a distance
// below C (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM
// Systems Journal 9, 1970), so one pass over the accesses gives the hit rate for every C. The
// distances are counted in a tree over the times of the last accesses (Bennett and Kruskal, "LRU
// stack processing", IBM Journal of Research and Development 19, 1975), here with 64 times in each
// leaf.
//
// Distances below max_ids are exact. Longer ones are measured on a sample of the ids, those whose
// hash is a multiple of 2^level, after SHARDS (Waldspurger, Park, Garthwaite and Ahmad, "Efficient
// MRC construction with SHARDS", FAST 2015): an access to such an id stands for 2^level accesses,
// and the distance among the sampled ids for a 2^level times longer one. The level grows whenever
// the sample has more than max_ids ids. That short distances are exact matters to skewed traffic:
// whether a sample has the most frequent ids is chance.
#ifndef TWML_CORE_REUSE_DISTANCE_H_
#define TWML_CORE_REUSE_DISTANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cc/core/id_index.h"
#include "cc/core/span.h"

namespace twml {

// The most recently used ids, in their order.
class LruStack {
 public:
  static constexpr int64_t kFirst = -1;

  // How many ids the stack has.
  int64_t size() const { return size_; }

  // Moves an id to the top. Returns how many ids were above it, or kFirst if the stack did not have
  // it.
  int64_t Access(int64_t id);

  // Removes the lowest id.
  void RemoveLowest();

  // Removes the ids for which `keep` is false.
  void Keep(const std::function<bool(int64_t)>& keep);

 private:
  int64_t MarksBefore(int64_t time) const;
  void AddMark(int64_t time, int64_t change);
  void RemoveAt(int64_t time);
  // Gives the last accesses the times 0, 1, 2, … in their order.
  void Renumber();

  IdIndex index_;                   // may have ids that were removed
  std::vector<int64_t> ids_;        // by number
  std::vector<int64_t> last_;       // by number: the time of the last access; -1: removed
  std::vector<int64_t> number_at_;  // by time: the id whose last access that is; -1: none
  std::vector<uint64_t> marks_;     // a bit for each time: whether it is a last access
  std::vector<int64_t> tree_;       // a Fenwick tree over the words of marks_
  int64_t now_ = 0, lowest_ = 0, size_ = 0;
};

// The result depends on the sequence of ids only, not on how it is divided into calls.
class ReuseDistances {
 public:
  static constexpr int64_t kMinIds = 64;
  static constexpr int64_t kMaxIds = int64_t{1} << 30;

  // `max_ids` in [kMinIds, kMaxIds].
  explicit ReuseDistances(int64_t max_ids) : max_ids_(max_ids) {}

  void Add(Span<const int64_t> ids);

  int64_t accesses() const { return accesses_; }

  // 0: there are no more than max_ids ids, and all results are exact.
  int level() const { return level_; }

  // The number of distinct ids; an estimate if the level is not 0.
  int64_t distinct_ids() const { return sample_ ? sample_->size() << level_ : stack_.size(); }

  // Sets hits[i] to the number of accesses that an LRU cache of sizes[i] ids would have served.
  void Hits(Span<const int64_t> sizes, int64_t* hits) const;

  // The smallest distance that a share of the accesses to ids seen before does not exceed; -1 if
  // there were none.
  int64_t Quantile(double share) const;

 private:
  // The long distances that were measured at one level.
  struct Sampled {
    std::vector<int64_t> by_distance;  // among the sampled ids
    int64_t first = 0;                 // accesses to ids that were not seen before
  };

  bool IsSampled(int64_t id) const;
  void AccessSample(int64_t id);
  void StartSample();

  int64_t max_ids_;
  int64_t accesses_ = 0;
  LruStack stack_;                    // of max_ids ids
  std::vector<int64_t> by_distance_;  // accesses with a distance below max_ids
  int level_ = 0;
  std::unique_ptr<LruStack> sample_;  // null until there are more than max_ids ids
  std::vector<Sampled> sampled_;      // by level
};

}  // namespace twml

#endif  // TWML_CORE_REUSE_DISTANCE_H_
