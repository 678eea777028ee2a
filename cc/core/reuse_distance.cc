#include "cc/core/reuse_distance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cc/core/hash.h"

namespace twml {
namespace {

constexpr int64_t kWord = 64;       // times in a word of marks
constexpr int64_t kMinTimes = 256;  // until the times are renumbered; a multiple of kWord

void Count(int64_t distance, std::vector<int64_t>* by_distance) {
  if (distance >= static_cast<int64_t>(by_distance->size())) by_distance->resize(distance + 1);
  ++(*by_distance)[distance];
}

int64_t Sum(const std::vector<int64_t>& counts, int64_t begin, int64_t end) {
  int64_t sum = 0;
  end = std::min<int64_t>(end, static_cast<int64_t>(counts.size()));
  for (int64_t i = begin; i < end; ++i) sum += counts[i];
  return sum;
}

}  // namespace

int64_t LruStack::Access(int64_t id) {
  if (now_ == static_cast<int64_t>(number_at_.size())) Renumber();
  const int64_t number = index_.FindOrAdd(id);
  // If it throws, the index has an id that counts as removed.
  if (number >= static_cast<int64_t>(last_.size())) {
    ids_.resize(number + 1);
    last_.resize(number + 1, -1);
  }
  ids_[number] = id;
  int64_t distance = kFirst;
  if (last_[number] >= 0) {
    distance = size_ - 1 - MarksBefore(last_[number]);
    RemoveAt(last_[number]);
  }
  last_[number] = now_;
  number_at_[now_] = number;
  AddMark(now_++, 1);
  return distance;
}

void LruStack::RemoveLowest() {
  if (size_ == 0) return;
  while (number_at_[lowest_] < 0) ++lowest_;
  last_[number_at_[lowest_]] = -1;
  RemoveAt(lowest_);
}

void LruStack::Keep(const std::function<bool(int64_t)>& keep) {
  for (int64_t time = lowest_; time < now_; ++time) {
    const int64_t number = number_at_[time];
    if (number < 0 || keep(ids_[number])) continue;
    last_[number] = -1;
    RemoveAt(time);
  }
  Renumber();
}

void LruStack::RemoveAt(int64_t time) {
  AddMark(time, -1);
  number_at_[time] = -1;
}

int64_t LruStack::MarksBefore(int64_t time) const {
  const int64_t word = time / kWord;
  const uint64_t below = marks_[word] & ((uint64_t{1} << (time % kWord)) - 1);
  int64_t sum = __builtin_popcountll(below);
  for (int64_t i = word; i > 0; i &= i - 1) sum += tree_[i - 1];
  return sum;
}

void LruStack::AddMark(int64_t time, int64_t change) {
  const int64_t word = time / kWord;
  marks_[word] ^= uint64_t{1} << (time % kWord);
  for (int64_t i = word + 1; i <= static_cast<int64_t>(tree_.size()); i += i & -i) {
    tree_[i - 1] += change;
  }
  size_ += change;
}

void LruStack::Renumber() {
  std::vector<int64_t> in_order;
  in_order.reserve(size_);
  for (int64_t time = lowest_; time < now_; ++time) {
    if (number_at_[time] >= 0) in_order.push_back(ids_[number_at_[time]]);
  }
  // All memory is allocated before anything changes.
  const int64_t size = size_;
  IdIndex index;
  if (size < index_.size()) index.Reserve(size);
  const int64_t times = std::max(kMinTimes, (2 * size + kWord) / kWord * kWord);
  std::vector<int64_t> number_at(times, -1), tree(times / kWord, 0);
  std::vector<uint64_t> marks(times / kWord, 0);
  if (size < index_.size()) std::swap(index_, index);
  ids_.resize(size);
  last_.resize(size);
  number_at_.swap(number_at);
  marks_.swap(marks);
  tree_.swap(tree);
  lowest_ = size_ = 0;
  for (now_ = 0; now_ < size; ++now_) {
    const int64_t number = index_.FindOrAdd(in_order[now_]);
    ids_[number] = in_order[now_];
    last_[number] = now_;
    number_at_[now_] = number;
    AddMark(now_, 1);
  }
}

bool ReuseDistances::IsSampled(int64_t id) const {
  constexpr int64_t kSalt = 17;  // differs from the hashes with which readers make ids
  return (HashPair(kSalt, id) & ((uint64_t{1} << level_) - 1)) == 0;
}

void ReuseDistances::Add(Span<const int64_t> ids) {
  for (const int64_t id : ids) {
    const int64_t distance = stack_.Access(id);
    ++accesses_;
    if (distance != LruStack::kFirst) Count(distance, &by_distance_);
    if (sample_ != nullptr) {
      if (IsSampled(id)) AccessSample(id);
    } else if (stack_.size() > max_ids_) {
      StartSample();
    }
    if (stack_.size() > max_ids_) stack_.RemoveLowest();
  }
}

void ReuseDistances::StartSample() {
  auto sample = std::make_unique<LruStack>(stack_);
  sampled_.assign(1, {});
  sampled_[0].first = stack_.size();
  sample_ = std::move(sample);
  while (sample_->size() > max_ids_) {
    sampled_.emplace_back();
    ++level_;
    sample_->Keep([&](int64_t id) { return IsSampled(id); });
  }
}

void ReuseDistances::AccessSample(int64_t id) {
  const int64_t distance = sample_->Access(id);
  Sampled& at_level = sampled_[level_];
  if (distance == LruStack::kFirst) {
    ++at_level.first;
  } else if (distance << level_ >= max_ids_) {
    Count(distance, &at_level.by_distance);
  }
  while (sample_->size() > max_ids_) {
    sampled_.emplace_back();
    ++level_;
    sample_->Keep([&](int64_t each) { return IsSampled(each); });
  }
}

void ReuseDistances::Hits(Span<const int64_t> sizes, int64_t* hits) const {
  const int64_t near = Sum(by_distance_, 0, max_ids_);
  // What the sample says of the other accesses: of `all`, so many have a distance below a size.
  int64_t all = 0;
  for (size_t level = 0; level < sampled_.size(); ++level) {
    const Sampled& s = sampled_[level];
    all += (s.first + Sum(s.by_distance, 0, INT64_MAX)) << level;
  }
  for (int64_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = std::max<int64_t>(0, sizes[i]);
    hits[i] = Sum(by_distance_, 0, std::min(size, max_ids_));
    if (size <= max_ids_ || all == 0) continue;
    int64_t below = 0;
    for (size_t level = 0; level < sampled_.size(); ++level) {
      below += Sum(sampled_[level].by_distance, 0, ((size - 1) >> level) + 1) << level;
    }
    const double share = static_cast<double>(below) / static_cast<double>(all);
    hits[i] += std::llround(share * static_cast<double>(accesses_ - near));
  }
}

int64_t ReuseDistances::Quantile(double share) const {
  auto largest = static_cast<int64_t>(by_distance_.size()) - 1;
  for (size_t level = 0; level < sampled_.size(); ++level) {
    const auto size = static_cast<int64_t>(sampled_[level].by_distance.size());
    largest = std::max(largest, (size - 1) << level);
  }
  if (largest < 0) return -1;
  const auto below = [&](int64_t size) {
    int64_t hits;
    Hits({&size, 1}, &hits);
    return hits;
  };
  const auto seen_before = static_cast<double>(below(largest + 1));
  const auto wanted = std::max<int64_t>(1, std::llround(std::ceil(share * seen_before)));
  int64_t low = 0, high = largest;
  while (low < high) {  // the smallest distance up to which there are `wanted`
    const int64_t middle = low + (high - low) / 2;
    if (below(middle + 1) >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace twml
