#include "cc/core/time_text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace twml {
namespace time_text_test {

constexpr TimePart kParts[] = {TimePart::kHour, TimePart::kWeekday, TimePart::kMonth,
                               TimePart::kHourOfWeek};
constexpr TimeUnit kUnits[] = {TimeUnit::kNone,         TimeUnit::kSeconds,
                               TimeUnit::kMilliseconds, TimeUnit::kMicroseconds,
                               TimeUnit::kNanoseconds,  TimeUnit::kDate};

TEST(TimeText, PartsOfATimeAreThoseOfItsDate) {
  constexpr int64_t kWanted[] = {10, 3, 1, 58};
  for (const char* text : {"2024-01-31T10:20:30Z", "31.1.2024 10:20", "1/31/2024 10:59:59 AM",
                           "1706696430", "1706696430.5"}) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(PartOfTime(text, {kParts[i], TimeUnit::kSeconds}), kWanted[i]) << text;
    }
  }
  EXPECT_EQ(PartOfTime("1706696430999", {TimePart::kHour, TimeUnit::kMilliseconds}), 10);
  EXPECT_EQ(PartOfTime("1706696430999999", {TimePart::kHour, TimeUnit::kMicroseconds}), 10);
  EXPECT_EQ(PartOfTime("1706696430999999999", {TimePart::kHour, TimeUnit::kNanoseconds}), 10);
  EXPECT_EQ(PartOfTime("-1", {TimePart::kHour, TimeUnit::kMilliseconds}), 23);
  EXPECT_EQ(PartOfTime("20240131", {TimePart::kWeekday, TimeUnit::kDate}), 3);
  EXPECT_EQ(PartOfTime("20240131", {TimePart::kWeekday, TimeUnit::kNone}), kUnreadableTime);
  EXPECT_EQ(PartOfTime("20240229", {TimePart::kWeekday, TimeUnit::kDate}), 4);
  EXPECT_EQ(PartOfTime("20230229", {TimePart::kWeekday, TimeUnit::kDate}), kUnreadableTime);
  EXPECT_EQ(PartOfTime(" NaN ", {TimePart::kWeekday, TimeUnit::kNone}), kMissingTime);
}

// The sanitizers find what overflows or reads beyond a text.
TEST(TimeText, AnyTextIsATimeInItsRangeOrNone) {
  std::mt19937 random(0);
  const std::string characters = "0123456789-/.:T ,AaPpMmZUTCG+";
  std::string text;
  for (int round = 0; round < 20000; ++round) {
    const char* const begins[] = {"", "2024-01-31", "31.1.2024 ", "-9223372036854775807.", "9999/"};
    text = begins[random() % 5];
    for (uint32_t left = random() % 12; left > 0; --left) {
      text += characters[random() % characters.size()];
    }
    for (const TimePart part : kParts) {
      const int64_t value = PartOfTime(text, {part, kUnits[random() % 6]});
      EXPECT_GE(value, kUnreadableTime) << text;
      EXPECT_LT(value, LimitOf(part)) << text;
    }
  }
}

}  // namespace time_text_test
}  // namespace twml
