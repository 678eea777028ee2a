#include "cc/core/number_ids.h"

#include <set>

#include "tests/cc/testing.h"

namespace twml {
namespace number_ids_test {

template <class Id>
void ExpectNumbered(int64_t entries, int64_t distinct, int64_t input_dim) {
  auto ids = RandomBatch<Id>({entries}, distinct).ids;
  for (Id& id : ids) id = static_cast<Id>(input_dim - 1 - id * (input_dim / distinct));
  const std::set<Id> sorted(ids.begin(), ids.end());
  NumberedIds<Id> numbered;
  ASSERT_TRUE(NumberIds(Span<const Id>(ids), input_dim, 0, &numbered));
  const Id* const found = numbered.distinct.data();
  EXPECT_EQ(std::vector<Id>(found, found + numbered.num_distinct),
            std::vector<Id>(sorted.begin(), sorted.end()));
  for (int64_t k = 0; k < entries; ++k) EXPECT_EQ(found[numbered.codes[k]], ids[k]);
}

TEST(NumberIds, NumbersIdsInAscendingOrderWhateverTheIdSpaceIs) {
  for (const int64_t input_dim : {1, 2, 15, 16, 17, 1000, 1 << 20}) {
    for (const int64_t entries : {1, 2, 63, 1000}) {
      for (const int64_t distinct : {1, 2, 1000}) {
        ExpectNumbered<int32_t>(entries, std::min(distinct, input_dim), input_dim);
        ExpectNumbered<int64_t>(entries, std::min(distinct, input_dim), input_dim);
      }
    }
  }
  ExpectNumbered<int64_t>(100, 50, std::numeric_limits<int64_t>::max());
}

TEST(NumberIds, GivesUpIfMoreThanHalfOfTheSampleIsDistinct) {
  for (const int64_t input_dim : {10, 1 << 20}) {
    NumberedIds<int64_t> numbered;
    const std::vector<int64_t> ids{5, 6, 5, 6, 7, 8, 9};
    for (int64_t sample = 0; sample <= 7; ++sample) {
      const std::set<int64_t> distinct(ids.begin(), ids.begin() + sample);
      EXPECT_EQ(NumberIds(Span<const int64_t>(ids), input_dim, sample, &numbered),
                2 * static_cast<int64_t>(distinct.size()) <= sample);
    }
  }
}

}  // namespace number_ids_test
}  // namespace twml
